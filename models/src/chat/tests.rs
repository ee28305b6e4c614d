use super::*;

fn rendered(source: &str) -> Result<String> {
    ChatTemplate::from_source(source).render(&Conversation::default().with("user", "Hello"))
}

fn text(source: &str) -> String {
    rendered(source).expect("the template is good")
}

/// Checks that a template fails with one line that has these words.
fn refused(source: &str, words: &str) {
    let name: String = source.chars().take(60).collect();
    let error = rendered(source).expect_err(&name).one_line();
    // A busy machine may run out of time first.
    let because = error.contains(words) || error.contains("takes longer than");
    assert!(because && error.len() < 300, "{name}: {error}");
}

#[test]
fn endless_and_greedy_templates_are_refused() {
    let forever = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}";
    refused(forever, "steps");
    refused("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion");
    refused("{{ 'a' * 10**9 }}", "bytes");
    refused(&format!("{{{{ {} }}}}", ["(90000000 * 'a')"; 40].join(" ~ ")), "bytes");
    for read in ["n | float", "n | filesizeformat", "' '.join([n]).strip()"] {
        refused(
            &format!("{{% set n = '1' * 4000000 %}}{{% for i in range(99999) %}}{{% set x = {read} %}}{{% endfor %}}"),
            "",
        );
    }
    refused("{% for x in range(10**9) %}{% endfor %}", "too many");
    refused("{{ [0] * 10**8 }}", "MiB");
    refused("{{ 9 ** 99999 }}", "bits");
    refused("{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "bytes");
    refused("{% set ns = namespace(s='a') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}", "bytes");
    let with_itself = |value: &str, last: &str| {
        format!(
            "{{% set ns = namespace(x=['a']) %}}{{% for i in range(60) %}}{{% set ns.x = {value} %}}{{% endfor %}}{last}"
        )
    };
    for value in ["[ns.x, ns.x]", "ns.x + ns.x", "{'a': ns.x, 'b': ns.x}", "(ns.x, ns.x)"] {
        for last in ["{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x | pprint }}", "{{ '%s' % (ns.x,) }}"] {
            let error = rendered(&with_itself(value, last)).expect_err(value).to_string();
            assert!(["MiB", "bytes", "steps", "longer"].iter().any(|word| error.contains(word)), "{value}: {error}");
        }
    }
    refused(&with_itself("(ns.x, ns.x)", "{{ {ns.x[0]: 1} }}").replace("['a']", "()"), "MiB");
    refused("{% set s = 'ab' * 1000000 %}{{ s | replace('a', s) }}", "bytes");
    refused("{% set s = 'ab' * 1000000 %}{{ s.replace('', s) }}", "bytes");
    refused("{% set s = 'ab' * 1000000 %}{{ (range(1000) | join(s)) }}", "bytes");
    refused("{% set s = 'ab' * 1000000 %}{{ s.join(['a', 'b', 'c', 'd']) }}", "bytes");
    refused("{{ ('a\n' * 100000) | indent(100000) }}", "bytes");
    refused("{{ [[1]] | tojson(indent=1000000000) }}", "bytes");
    refused("{{ '%1000000000d' | format(1) }}", "width");
    refused("{{ '%.1000000000f' | format(1) }}", "width");
    refused("{{ '{:1000000000}'.format(1) }}", "width");
    refused("{{ '{:{}}'.format(1, 1000000000) }}", "width");
    refused("{{ 'a'.center(1000000000) }}", "bytes");
    refused("{{ [1] | batch(1000000000, 0) | list }}", "parts");
    refused("{{ [1] | slice(1000000000) | list }}", "parts");
    refused("{% set s = 'a' * 4000000 %}{% for i in range(100) %}{{ s }}{% endfor %}", "writes");
    let captured = "{% set s = 'a' * 4000000 %}{% set t %}{% for i in range(100) %}{{ s }}{% endfor %}{% endset %}";
    refused(captured, "writes");
    let raw = format!("{{% set t %}}{{% for i in range(100000) %}}{}{{% endfor %}}{{% endset %}}", "a".repeat(1000));
    refused(&raw, "writes");
    refused("{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{% set t = s[1:] %}{% endfor %}", "MiB");
    refused("{% set s = 'a' * 4000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}", "steps");
    refused(&"a".repeat(MAX_TEMPLATE_BYTES + 1), "bytes");
}

#[test]
fn deep_templates_leave_the_stack_whole() {
    refused(&format!("{{{{ 1{} }}}}", "+1".repeat(60_000)), "too long");
    refused(&format!("{{{{ 1{} }}}}", "|abs".repeat(50_000)), "too long");
    refused(&format!("{{{{ {} }}}}", "-".repeat(100_000)), "recursion");
    refused(&format!("{{{{ {}1{} }}}}", "(".repeat(2000), ")".repeat(2000)), "recursion");
    refused(&"{% if 1 %}".repeat(20_000), "recursion");
    refused(&format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(20_000)), "too long");
    assert_eq!(text(&format!("{{{{ 1{} }}}}", "+1".repeat(2000))), "2001");
    assert_eq!(text(&format!("{{{{ {}1{} }}}}", "(".repeat(90), ")".repeat(90))), "1");
    let alternatives = "{% elif 0 %}".repeat(1000);
    assert_eq!(text(&format!("{{% if 0 %}}{alternatives}{{% else %}}x{{% endif %}}")), "x");
    // Recursion through every kind of call.
    refused("{% macro f(a=f()) %}{{ a }}{% endmacro %}{{ f() }}", "recursion");
    refused(
        "{% macro f() %}{% call f() %}x{% endcall %}{{ caller() }}{% endmacro %}{% call f() %}{% endcall %}",
        "recursion",
    );
    refused("{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recursion");
    refused("{% block a %}{{ self.a() }}{% endblock %}", "recursion");
    refused("{% macro f() %}{% for i in [1] if f() %}{% endfor %}{% endmacro %}{{ f() }}", "recursion");
    let nested = "{% macro f() %}{% if 1 %}{% with %}{% set x %}{{ [[{'a': (1 + f()|length) * 2}]]|join }}{% endset %}\
        {% endwith %}{% endif %}{% endmacro %}{{ f() }}";
    refused(nested, "recursion");
}

#[test]
fn long_chains_of_values_are_dropped_safely() {
    let chain =
        |value: &str| format!("{{% set ns = namespace(x=[]) %}}{{% for i in range(20000) %}}{value}{{% endfor %}}ok");
    for value in [
        "{% set ns.x = namespace(x=ns.x) %}",
        "{% set old = ns.x %}{% macro f() %}{{ old }}{% endmacro %}{% set ns.x = f %}",
        "{% set old = ns.x %}{% for j in [1] recursive %}{% set ns.x = loop %}{% endfor %}",
        "{% for j in [1] %}{% set y = loop.changed(ns.x) %}{% set ns.x = loop %}{% endfor %}",
    ] {
        assert_eq!(text(&chain(value)), "ok", "{value}");
    }
    for value in ["[ns.x]", "[ns.x].index", "cycler(ns.x)", "[ns.x]|reverse", "{'a': ns.x}.items()", "joiner(ns.x)"] {
        refused(&chain(&format!("{{% set ns.x = {value} %}}")), "deeper");
    }
    // Values that hold themselves.
    assert_eq!(text("{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}"), "<Namespace {'a': <Namespace {...}>}>");
    refused(
        "{% set ns = namespace(x=1) %}{% for i in range(500) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}{{ ns }}",
        "deeper",
    );
}

#[test]
fn errors_name_their_line() {
    refused("\n\n{{ raise_exception('no such role') }}", "no such role (line 3)");
    refused("{% if %}", "line 1");
    refused("a\n{% for x in [1] %}\n{{ x.y.z }}\n{% endfor %}", "'int object' has no attribute 'y' (line 3)");
    refused("{% macro f() %}\n{{ 1 / 0 }}\n{% endmacro %}\n\n{{ f() }}", "division by zero (line 2)");
    refused("{{ messages[0].content.nope() }}", "nope");
    refused("{{ messages | nope }}", "no filter named 'nope' (line 1)");
    refused("{{ messages is nope }}", "no test named 'nope' (line 1)");
    refused("{{ nope.more }}", "'nope' is undefined");
    refused("{{ strftime_now('%!') }}", "%!");
    refused("{% include 'config.json' %}", "do not have");
    refused("{% import 'config.json' as c %}", "do not have");
    refused("{{ undefined_value | tojson }}", "JSON");
    refused("{% for x in [1] %}", "endfor");
    refused("{% macro f(a) %}{% endmacro %}{{ f(b=1) }}", "macro 'f' takes no keyword argument 'b'");
    let error = ChatTemplate::from_source("x").render(&Conversation::default()).expect_err("no message");
    assert!(error.to_string().contains("without a message"));
}

#[test]
fn strings_have_the_methods_of_python() {
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
    assert_eq!(text("{{ [1, none, true, \"it's\" ~ 1.0] }}"), "[1, None, True, \"it's1.0\"]");
}

#[test]
fn json_is_written_as_python_does() {
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

#[test]
fn the_time_is_formatted() {
    let year = text("{{ strftime_now('%Y') }}");
    assert!(year.len() == 4 && year.parse::<u32>().is_ok_and(|year| year >= 2025), "{year}");
    assert_eq!(text("{{ strftime_now('%d %b %Y')|length }}"), "11");
    // Python's local time has microseconds and no zone.
    assert_eq!(text("{{ strftime_now('%f')|length }}{{ strftime_now('%Z%z') }}{{ strftime_now('%%é') }}"), "6%é");
    assert_eq!(text("{{ strftime_now('%Ez%Oz%E%%Of%Eq%O') }}"), "%%Of%Eq%O");
    assert_eq!(text("{{ strftime_now('%EY %Od %Ex') == strftime_now('%Y %d %x') }}"), "True");
    assert_eq!(text("{{ strftime_now('%c') == strftime_now('%a %b %e %H:%M:%S %Y') }}"), "True");
    refused(&format!("{{{{ strftime_now('{}') }}}}", "%B".repeat(1000)), "at most 1000 bytes");
}

#[test]
fn messages_are_given_as_transformers_gives_them() {
    let given = |message: Value| {
        let conversation = Conversation { messages: vec![message], ..Conversation::default() };
        ChatTemplate::from_source("{{ messages[0]|tojson }}").render(&conversation).expect("a good template")
    };
    let plain = serde_json::json!({"role": "user", "content": "a", "tool_calls": null});
    assert_eq!(given(plain), r#"{"role": "user", "content": "a"}"#);
    // Reasoning goes by the names `thinking` (first) and `reasoning_content`.
    let reasoned = serde_json::json!({"role": "assistant", "reasoning": "r"});
    assert_eq!(
        given(reasoned),
        r#"{"thinking": "r", "role": "assistant", "reasoning": "r", "reasoning_content": "r"}"#
    );
    let both = serde_json::json!({"reasoning_content": null, "role": "assistant", "thinking": "t", "reasoning": "r"});
    assert_eq!(given(both), r#"{"thinking": "t", "role": "assistant", "reasoning": "r", "reasoning_content": "t"}"#);
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, contents) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("the folder is made");
        std::fs::write(path, contents).expect("the file is written");
    }
    folder
}

fn template(folder: &tempfile::TempDir) -> Result<ChatTemplate> {
    Ok(ChatTemplate::read(&Documents::new(folder.path()))?.expect("there is a template"))
}

/// The text of a folder's template for a short conversation, with or without tools.
fn text_of_folder(files: &[(&str, &str)], tools: bool) -> Result<String> {
    let conversation = Conversation { tools: tools.then(Vec::new), ..Conversation::default().with("user", "Hello") };
    template(&folder(files))?.render(&conversation)
}

/// The expected values are those of transformers 5.
#[test]
fn special_tokens_are_found_as_transformers_does() {
    const TEMPLATE: &str = "{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ x }}|{{ additional_special_tokens }}";
    let rendered = |config: &str, map: &str| {
        let files = [("chat_template.jinja", TEMPLATE), ("tokenizer_config.json", config)];
        let map = [("special_tokens_map.json", map)];
        let files: Vec<_> = files.into_iter().chain(map.into_iter().filter(|(_, text)| !text.is_empty())).collect();
        text_of_folder(&files, false).expect(config)
    };
    let token = r#"{"content": "<b>", "lstrip": false, "__type": "AddedToken"}"#;
    assert_eq!(rendered(&format!(r#"{{"bos_token": {token}, "eos_token": null}}"#), ""), "<b>||||");
    let config = r#"{"bos_token": "<b>", "eos_token": null, "add_bos_token": true, "x_token": 5}"#;
    let map = r#"{"bos_token": "<mb>", "eos_token": "<me>", "image_token": {"content": "<mi>"}}"#;
    assert_eq!(rendered(config, map), "<mb>|<me>|<mi>||");
    let with_decoder = r#"{"bos_token": "<b>", "added_tokens_decoder": {}}"#;
    assert_eq!(rendered(with_decoder, map), "<b>||||");
    assert_eq!(rendered(r#"{"image_token": "<i>"}"#, ""), "||<i>||");
    // A class has tokens that the config need not name; null takes them away.
    assert_eq!(rendered(r#"{"tokenizer_class": "LlamaTokenizer"}"#, ""), "<s>|</s>|||");
    assert_eq!(rendered(r#"{"tokenizer_class": "GemmaTokenizerFast", "eos_token": "<e>"}"#, ""), "<bos>|<e>|||");
    assert_eq!(rendered(r#"{"tokenizer_class": "LlamaTokenizer", "bos_token": null}"#, ""), "|</s>|||");
    assert_eq!(rendered(r#"{"tokenizer_class": "GPT2Tokenizer"}"#, r#"{"bos_token": "<m>"}"#), "<m>|<|endoftext|>|||");
    let extra =
        r#"{"image_token": "<top>", "bos_token": "<b>", "extra_special_tokens": {"image_token": "<i>", "x": "<x>"}}"#;
    assert_eq!(rendered(extra, ""), "<b>||<i>|<x>|");
    let own = r#""model_specific_special_tokens": {"image_token": "<i>"}"#;
    assert_eq!(rendered(&format!("{{{own}}}"), ""), "||<i>||");
    assert_eq!(rendered(&format!(r#"{{{own}, "x_token": "<a>"}}"#), ""), "||||");
    assert_eq!(rendered("{}", r#"{"extra_special_tokens": {"x": "<x>"}}"#), "|||<x>|");
    assert_eq!(rendered(&format!(r#"{{{own}, "extra_special_tokens": {{}}}}"#), ""), "||<i>||");
    // The map goes before the config only for the seven common attributes, and for tokens given as objects.
    let map = r#"{"image_token": "<mi>", "x": "<mx>"}"#;
    assert_eq!(rendered(r#"{"image_token": "<i>"}"#, map), "||<i>||");
    assert_eq!(rendered(r#"{"extra_special_tokens": {"image_token": "<i>"}}"#, map), "||<i>||");
    assert_eq!(rendered(&format!("{{{own}}}"), map), "||<i>||");
    assert_eq!(rendered(&format!(r#"{{"image_token": {token}}}"#), map), "||<mi>||");
    assert_eq!(rendered(&format!(r#"{{"image_token": {token}, {own}}}"#), ""), "||<i>||");
    assert_eq!(rendered("{}", map), "||<mi>||");
    let named = r#"{"extra_special_tokens": {"image_token": "<mi>"}}"#;
    assert_eq!(rendered(r#"{"image_token": "<i>"}"#, named), "||<mi>||");
    assert_eq!(rendered(r#"{"tokenizer_class": "LlamaTokenizer"}"#, r#"{"bos_token": null}"#), "|</s>|||");
    let lists = r#"{"extra_special_tokens": ["<i>"], "additional_special_tokens": ["<j>"]}"#;
    assert_eq!(rendered(lists, ""), "||||");
}

/// The expected values are those of transformers 5.
#[test]
fn named_templates_are_chosen_as_transformers_does() {
    let config = ("tokenizer_config.json", r#"{"chat_template": "C"}"#);
    let (own, tools) = (("chat_template.jinja", "F"), ("additional_chat_templates/tool_use.jinja", "T"));
    let rag = ("additional_chat_templates/rag.jinja", "R");
    let rendered = |files: &[(&str, &str)], tools: bool| text_of_folder(files, tools).expect("a good template");
    assert_eq!(rendered(&[config], true), "C");
    assert_eq!(rendered(&[config, own], false), "F");
    assert_eq!(rendered(&[config, own, tools], false), "F");
    assert_eq!(rendered(&[config, own, tools], true), "T");
    assert_eq!(rendered(&[config, tools], true), "T");
    assert_eq!(rendered(&[config, own, ("additional_chat_templates/default.jinja", "D")], false), "D");
    assert_eq!(rendered(&[config, ("additional_chat_templates/x.txt", "X")], false), "C");
    // Files replace the config's template, even where none of them is the default.
    let error = text_of_folder(&[config, rag], false).expect_err("no default").one_line();
    assert!(error.contains("additional_chat_templates") && error.contains("there are rag"), "{error}");

    for config in [
        r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]}"#,
        r#"{"chat_template": {"default": "D", "tool_use": "T"}}"#,
        r#"{"chat_template": [{"name": "default", "template": "old"}, {"name": "default", "template": "D"},
            {"name": "tool_use", "template": "T"}]}"#,
    ] {
        assert_eq!(rendered(&[("tokenizer_config.json", config)], false), "D");
        assert_eq!(rendered(&[("tokenizer_config.json", config)], true), "T");
    }
    assert_eq!(ChatTemplate::read(&Documents::new(folder(&[]).path())).expect("no file"), None);
}

#[test]
fn a_template_is_chosen_by_its_name() {
    let files =
        [("chat_template.jinja", "F{{ bos_token }}"), ("additional_chat_templates/rag.jinja", "R{{ bos_token }}")];
    let folder = folder(&files);
    std::fs::write(folder.path().join("tokenizer_config.json"), r#"{"bos_token": "<b>"}"#).expect("written");
    let template = template(&folder).expect("templates");
    let hello = Conversation { tools: Some(Vec::new()), ..Conversation::default().with("user", "Hello") };
    let rag = template.named("rag").expect("it is there");
    assert_eq!(rag.render(&hello).expect("a good template"), "R<b>");
    assert_eq!(template.named("default").expect("it is there").render(&hello).expect("a good template"), "F<b>");
    assert_eq!(template.named("nope"), None);
}

#[test]
fn template_files_of_the_wrong_kind_are_named() {
    for (contents, words) in [
        (r#"{"chat_template": 5}"#, "`chat_template` must be a string or a list of named templates, found 5"),
        (r#"{"chat_template": ["a"]}"#, "must have objects with name and template, found \"a\""),
        (r#"{"chat_template": [{"name": "a"}]}"#, "must have objects"),
        (r#"{"chat_template": {"a": 1}}"#, "`chat_template` must have strings as templates, found 1"),
        (r#"{"chat_template": "a", "bos_token": 7}"#, "`bos_token` must be"),
        (r#"{"chat_template": "a", "extra_special_tokens": {"a": []}}"#, "`a` must be"),
        ("[]", "tokenizer_config.json"),
        ("{", "not valid JSON"),
    ] {
        let error = template(&folder(&[("tokenizer_config.json", contents)]));
        let error = error.expect_err(contents).one_line();
        assert!(error.contains(words), "{contents}: {error}");
    }
    let named = r#"{"chat_template": [{"name": "rag", "template": "a"}]}"#;
    let of_config = folder(&[("tokenizer_config.json", named)]);
    let error = template(&of_config).expect("templates").render(&Conversation::default().with("user", "a"));
    assert!(error.expect_err("no default").to_string().contains("there are rag"));

    let many: Vec<String> = (0..65).map(|at| format!("additional_chat_templates/{at}.jinja")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "")).collect();
    let error = template(&folder(&many)).expect_err("too many").one_line();
    assert!(error.contains("more than 64 chat templates"), "{error}");
    let long = "a".repeat((1 << 20) + 1);
    let error = template(&folder(&[("additional_chat_templates/a.jinja", &long)])).expect_err("too long").one_line();
    assert!(error.contains("a.jinja") && error.contains("larger than 1 MiB"), "{error}");
}
