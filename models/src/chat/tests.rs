use super::*;

fn said(source: &str) -> Result<String> {
    ChatTemplate::from_source(source).render(&Conversation::default().with("user", "Hello"))
}

fn text(source: &str) -> String {
    said(source).expect("the template is good")
}

/// Refused with a message of one line that has these words.
fn refused(source: &str, words: &str) {
    let name: String = source.chars().take(60).collect();
    let error = said(source).expect_err(&name).one_line();
    // On a machine that is busy the time may be up first.
    let because = error.contains(words) || error.contains("takes longer than");
    assert!(because && error.len() < 300, "{name}: {error}");
}

#[test]
fn templates_that_would_not_end_or_fill_the_memory_are_refused() {
    let forever = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    refused(forever, "steps");
    refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
    refused("{{ 'a' * 10**9 }}", "bytes");
    refused(&format!("{{{{ {} }}}}", ["(90000000 * 'a')"; 40].join(" ~ ")), "bytes");
    refused("{% for x in range(10**9) %}{% endfor %}", "too many");
    refused("{{ [0] * 10**8 }}", "MiB");
    refused("{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "bytes");
    refused("{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "bytes");
    let with_itself = |value: &str, last: &str| {
        format!(
            "{{% set ns = namespace(x=['a']) %}}{{% for i in range(60) %}}{{% set ns.x = {value} %}}{{% endfor %}}{last}"
        )
    };
    for value in ["[ns.x, ns.x]", "ns.x + ns.x", "{'a': ns.x, 'b': ns.x}", "(ns.x, ns.x)", "[[ns.x]]"] {
        for last in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x == ns.x }}", "{{ ns.x | list | length }}"] {
            let error = said(&with_itself(value, last)).expect_err(value).to_string();
            assert!(["MiB", "deeper", "longer"].iter().any(|word| error.contains(word)), "{value}: {error}");
        }
    }
    refused("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}", "namespace");
    refused("{% set ns = namespace() %}{% set ns.a = [{'b': ns}] %}{{ ns }}", "namespace");
    refused("{% set s = 'ab' * 1000000 %}{{ s | replace('a', s) }}", "bytes");
    refused("{% set s = 'ab' * 1000000 %}{{ s.replace('', s) }}", "bytes");
    refused("{% set s = 'ab' * 1000000 %}{{ (range(1000) | join(s)) }}", "bytes");
    refused("{% set s = 'ab' * 1000000 %}{{ s.join(['a', 'b', 'c', 'd']) }}", "bytes");
    refused("{{ ('a\n' * 100000) | indent(100000) }}", "bytes");
    refused("{{ [[1]] | tojson(indent=1000000000) }}", "bytes");
    refused("{{ '%1000000000d' | format(1) }}", "width");
    refused("{{ '{:1000000000}'.format(1) }}", "width");
    refused("{{ '{:{}}'.format(1, 1000000000) }}", "width");
    refused("{{ [1] | batch(1000000000, 0) | list }}", "parts");
    refused("{{ [1] | slice(1000000000) | list }}", "parts");
    refused("{% set s = 'a' * 4000000 %}{% for i in range(100) %}{{ s }}{% endfor %}", "writes");
    let captured = "{% set s = 'a' * 4000000 %}{% set t %}{% for i in range(100) %}{{ s }}{% endfor %}{% endset %}";
    refused(captured, "writes");
    let raw = format!("{{% set t %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}", "a".repeat(1000));
    refused(&raw, "writes");
    refused("{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{% set t = s[1:] %}{% endfor %}", "MiB");
    refused(&"a".repeat(MAX_TEMPLATE_BYTES + 1), "bytes");
}

#[test]
fn deep_templates_are_refused_and_leave_the_stack_whole() {
    refused(&format!("{{{{ 1{} }}}}", "+1".repeat(60_000)), "too long");
    refused(&format!("{{{{ 1{} }}}}", "|abs".repeat(50_000)), "too long");
    refused(&format!("{{{{ {} }}}}", "-".repeat(100_000)), "");
    refused(&format!("{{{{ {}1{} }}}}", "(".repeat(2000), ")".repeat(2000)), "recursion");
    refused(&"{% if 1 %}".repeat(20_000), "");
    refused(&format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(20_000)), "too long");
    // The longest and deepest that are let through.
    assert_eq!(text(&format!("{{{{ 1{} }}}}", "+1".repeat(2000))), "2001");
    let alternatives = "{% elif 0 %}".repeat(1000);
    assert_eq!(text(&format!("{{% if 0 %}}{alternatives}{{% else %}}x{{% endif %}}")), "x");
}

#[test]
fn what_a_template_cannot_do_is_said_with_its_line() {
    refused("\n\n{{ raise_exception('no such role') }}", "no such role (line 3)");
    refused("{% if %}", "line 1");
    refused("{{ messages[0].content.nope() }}", "nope");
    refused("{{ messages | nope }}", "nope");
    refused("{{ nope.more }}", "undefined");
    refused("{{ strftime_now('%!') }}", "%!");
    refused("{% include 'config.json' %}", "do not have");
    refused("{% import 'config.json' as c %}", "do not have");
    refused("{{ undefined_value | tojson }}", "JSON");
    let error = ChatTemplate::from_source("x").render(&Conversation::default()).expect_err("no message");
    assert!(error.to_string().contains("without a message"));
}

#[test]
fn texts_have_pythons_methods() {
    assert_eq!(text("{{ '  a b  c '.split(none, 1) }}"), "['a', 'b  c ']");
    assert_eq!(text("{{ '  a b  c '.rsplit(none, 1) }}"), "['  a b', 'c']");
    assert_eq!(text("{{ ' a  b '.split() }}{{ 'a--b'.split('-') }}"), "['a', 'b']['a', '', 'b']");
    assert_eq!(text("{{ 'a-b-c'.split('-', maxsplit=1) }}{{ 'a-b-c'.rsplit('-', 1) }}"), "['a', 'b-c']['a-b', 'c']");
    assert_eq!(text("{{ 'a\r\nb\u{2028}c\n'.splitlines() }}"), "['a', 'b', 'c']");
    assert_eq!(text("{{ 'a=b=c'.partition('=')[2] }}{{ 'a=b=c'.rpartition('=')[0] }}"), "b=ca=b");
    assert_eq!(text("{{ 'abc'.removeprefix('a').removesuffix('c') }}"), "b");
    assert_eq!(text("{{ '\u{1f} a '.strip() }}|{{ 'xax'.lstrip('x') }}|{{ ' a ' | trim }}"), "a|ax|a");
    assert_eq!(text("{{ 'aaa'.replace('a', 'b', 2) }}{{ 'aaa' | replace('a', 'b') }}"), "bbabbb");
    assert_eq!(text("{{ 'a\n\nb\n' | indent(2) }}|{{ 'a' | indent(1, true) }}"), "a\n\n  b\n| a");
    assert_eq!(text("{{ '%s-%03d' | format('a', 7) }}{{ '{}/{}'.format(1, 2) }}"), "a-0071/2");
    assert_eq!(
        text("{{ 'a' is sequence }}{{ {} is sequence }}{{ 'a' is iterable }}{{ 1 is iterable }}"),
        "TrueTrueTrueFalse"
    );
    assert_eq!(text("{{ [1, none, true, 'it''s' ~ 1.0] }}".replace("''", "").as_str()), "[1, None, True, 'its1.0']");
}

#[test]
fn json_is_pythons() {
    assert_eq!(text("{{ {'b': 1, 'a': [1.0, none, true]} | tojson }}"), r#"{"b": 1, "a": [1.0, null, true]}"#);
    assert_eq!(text("{{ {'b': 1, 'a': {}} | tojson(indent=1, sort_keys=true) }}"), "{\n \"a\": {},\n \"b\": 1\n}");
    assert_eq!(
        text("{{ ['é<>&\\'\u{7f}'] | tojson }}{{ 'é🦀' | tojson(ensure_ascii=true) }}"),
        "[\"é<>&'\u{7f}\"]\"\\u00e9\\ud83e\\udd80\""
    );
    assert_eq!(
        text("{{ [1e20, 1e-7, 0.1, 123456789012345680.0, -2.5e300] | tojson }}"),
        "[1e+20, 1e-07, 0.1, 1.2345678901234568e+17, -2.5e+300]"
    );
    assert_eq!(text("{{ [1, 2] | tojson(separators=(',', ':'), indent='-') }}"), "[\n-1,\n-2\n]");
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, contents) in files {
        std::fs::write(folder.path().join(name), contents).expect("the file is written");
    }
    folder
}

fn template(folder: &tempfile::TempDir) -> Result<ChatTemplate> {
    Ok(ChatTemplate::read(&Documents::new(folder.path()))?.expect("there is a template"))
}

#[test]
fn a_folders_template_and_special_tokens_are_found() {
    let config = r#"{"chat_template": "config {{ bos_token }}", "bos_token": {"content": "<b>", "lstrip": false},
        "eos_token": null, "extra_special_tokens": {"image_token": "<image>"}}"#;
    let map = r#"{"bos_token": "<other>", "eos_token": "<e>"}"#;
    let own = "own {{ bos_token }}{{ eos_token }}{{ image_token }}";
    let hello = Conversation::default().with("user", "Hello");
    let render = |files: &[(&str, &str)]| template(&folder(files)).and_then(|t| t.render(&hello)).expect("a template");
    let (config, map) = (("tokenizer_config.json", config), ("special_tokens_map.json", map));
    assert_eq!(render(&[config, map, ("chat_template.jinja", own)]), "own <b><e><image>");
    assert_eq!(render(&[config]), "config <b>");

    let named =
        r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}"#;
    let folder_of_two = folder(&[("tokenizer_config.json", named)]);
    let two = template(&folder_of_two).expect("templates");
    assert_eq!(two.render(&hello).expect("a template"), "plain");
    assert_eq!(two.render(&Conversation { tools: Some(Vec::new()), ..hello.clone() }).expect("a template"), "tools");

    assert_eq!(ChatTemplate::read(&Documents::new(folder(&[]).path())).expect("no file"), None);
}

#[test]
fn template_files_of_the_wrong_kind_are_named() {
    for (contents, words) in [
        (r#"{"chat_template": 5}"#, "`chat_template` must be a string or a list of named templates, found 5"),
        (r#"{"chat_template": ["a"]}"#, "must have objects with name and template, found \"a\""),
        (r#"{"chat_template": [{"name": "a"}]}"#, "must have objects"),
        (r#"{"bos_token": 7}"#, "`bos_token` must be"),
        (r#"{"extra_special_tokens": {"a": []}}"#, "`a` must be"),
        ("[]", "tokenizer_config.json"),
        ("{", "not valid JSON"),
    ] {
        let error = template(&folder(&[("tokenizer_config.json", contents)]));
        let error = error.expect_err(contents).one_line();
        assert!(error.contains(words), "{contents}: {error}");
    }
    let named = r#"{"chat_template": [{"name": "rag", "template": "a"}]}"#;
    let folder = folder(&[("tokenizer_config.json", named)]);
    let error = template(&folder).expect("templates").render(&Conversation::default().with("user", "a"));
    assert!(error.expect_err("no default").to_string().contains("there are rag"));
}
