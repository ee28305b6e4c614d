//! `sinew chat`, run as a user runs it, and the sessions that it is made of.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use sinew::models::engine::{Engine, EngineOptions};
use sinew::models::{Conversation, Generation, Happening, Request, Session, TextStream, Tokenizer, stop};
use sinew::prelude::*;

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{command, refused, run, stdout};
use fixtures::{copy, fixture_path, with_field};

const FIXTURE: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";

fn folder() -> PathBuf {
    fixture_path(FIXTURE)
}

fn sinew(name: &str, folder: &Path, arguments: &[&str], input: &str) -> Output {
    run(command().args([name, "--model"]).arg(folder).args(arguments), input)
}

fn model() -> LanguageModel {
    LanguageModel::load(folder(), &LoadOptions::default()).expect("the fixture loads")
}

/// What `sinew chat` should answer: each turn generated from nothing.
fn answers(system: Option<&str>, messages: &[&str], options: &GenerateOptions) -> Vec<String> {
    let (mut model, files) = (model(), Folder::new(folder()));
    let template = files.chat_template().expect("it is read").expect("there is one");
    let mut conversation = Conversation::default();
    if let Some(system) = system {
        conversation.push("system", system);
    }
    let answer = |message: &&str| {
        conversation.push("user", message);
        let text = template.render(&conversation).expect("the template is good");
        let prompt = model.tokenizer().expect("a tokenizer").encode(&text, false).expect("tokens");
        let answer = model.generate(&prompt, options, &mut |_| ControlFlow::Continue(())).expect("an answer").text;
        conversation.push("assistant", &answer);
        answer
    };
    messages.iter().map(answer).collect()
}

fn limited(max_new_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_new_tokens, ..GenerateOptions::default() }
}

#[test]
fn chat_remembers_the_conversation_until_it_is_reset() {
    let expected = answers(Some("Be brief."), &["Hello", "And now?", "naïve 🦀"], &limited(8));
    let input = "Hello\n\nAnd now?\nnaïve 🦀\n/reset\nHello\n/quit\nnot read\n";
    let output = sinew("chat", &folder(), &["--system", "Be brief.", "--max-new-tokens", "8"], input);
    let all: String = expected.iter().chain(&expected[..1]).map(|answer| format!("{answer}\n")).collect();
    assert_eq!(stdout(&output), all);
    assert!(expected[0] != expected[1]);
}

#[test]
fn chat_says_what_it_knows_and_what_it_does_not() {
    let text = stdout(&sinew("chat", &folder(), &["--max-new-tokens", "4"], "/help\nHello\nMore\n/stats"));
    assert!(text.contains("/reset") && text.contains("/quit"), "{text}");
    let cached = text.lines().find_map(|line| line.split(" tokens, ").nth(1)?.strip_suffix(" of them from the cache"));
    let cached = cached.or_else(|| text.split(", ").find_map(|part| part.strip_suffix(" of them from the cache")));
    assert!(cached.is_some_and(|n| n.parse::<usize>().is_ok_and(|n| n > 0)), "{text}");
    assert!(text.contains("2 answers; context") && text.contains("answers 8 tokens"), "{text}");
    let text = stdout(&sinew("chat", &folder(), &["--max-new-tokens", "4"], "Hello\n/reset\n/stats"));
    assert!(text.contains("1 answers; context 0 of"), "{text}");
    let output = sinew("chat", &folder(), &[], "/nonsense\n");
    assert!(stdout(&output).is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no command `/nonsense`"));
}

#[test]
fn a_full_context_is_said_and_nothing_is_dropped() {
    let context = ["--context", "40", "--ignore-eos"];
    let long = "word ".repeat(60);
    refused(&sinew("chat", &folder(), &context, &format!("{long}\n")), &["more than the 40 tokens", "/reset"]);
    let output = sinew("chat", &folder(), &context, "Hello\n");
    assert!(!stdout(&output).trim().is_empty());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("context of 40 tokens is full") && said.lines().count() == 1, "{said}");
    refused(&sinew("chat", &folder(), &["--context", "100000"], "Hello\n"), &["100000 tokens", "positions"]);
}

#[test]
fn chat_without_a_usable_template_is_one_line() {
    let copy = copy(FIXTURE);
    let path = copy.path();
    let (jinja, config) = (path.join("chat_template.jinja"), path.join("tokenizer_config.json"));
    let write = |path: &Path, text: &str| std::fs::write(path, text).expect("the file is written");
    let run = || sinew("chat", path, &["--max-new-tokens", "2"], "Hello\n");
    write(&jinja, "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}");
    refused(&run(), &["chat_template.jinja", "steps"]);
    write(&jinja, "{{ raise_exception('only systems speak') }}");
    refused(&run(), &["only systems speak", "line 1"]);
    write(&jinja, "{% for %}");
    refused(&run(), &["chat_template.jinja", "line 1"]);
    write(&jinja, "");
    refused(&run(), &["no token"]);
    std::fs::remove_file(&jinja).expect("it was there");
    refused(&run(), &["no chat template"]);
    write(&config, r#"{"chat_template": {"default": 1}}"#);
    refused(&run(), &["tokenizer_config.json", "`chat_template`"]);
    write(&config, r#"{"chat_template": "{{ messages[0].content }}"}"#);
    assert!(stdout(&run()).ends_with('\n'));
    std::fs::remove_file(path.join("tokenizer.json")).expect("it was there");
    refused(&run(), &["tokenizer.json"]);
}

#[test]
fn the_checkpoints_generation_config_holds_until_an_option_says_otherwise() {
    let copy = copy(FIXTURE);
    let path = copy.path();
    let config = |text: &str| std::fs::write(path.join("generation_config.json"), text).expect("the file is written");
    let run = |more: &[&str]| {
        let output = sinew("generate", path, &[&["--prompt", "Hello", "--ignore-eos", "--json"], more].concat(), "");
        let value: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        value["tokens"].as_array().expect("tokens").clone()
    };
    config("{}");
    let greedy = run(&["--max-new-tokens", "20"]);
    let sampled = run(&["--max-new-tokens", "20", "--temperature", "1.5", "--top-k", "40", "--top-p", "0.9"]);
    assert_ne!(greedy, sampled);
    config(r#"{"do_sample": true, "temperature": 1.5, "top_k": 40, "top_p": 0.9, "max_new_tokens": 20}"#);
    assert_eq!(run(&[]), sampled);
    assert_eq!(run(&["--temperature", "0"]), greedy);
    assert_eq!(run(&["--max-new-tokens", "3"]), sampled[..3]);
    config(r#"{"do_sample": false, "temperature": 1.5, "max_length": 12}"#);
    let prompt = model().encode("Hello").expect("tokens").len();
    assert_eq!(run(&[]), greedy[..12 - prompt]);
    // Greedy decoding reads none of these; transformers generates with them.
    config(r#"{"top_k": -1, "min_p": 2, "top_p": -3, "temperature": 0, "max_new_tokens": 20}"#);
    assert_eq!(run(&[]), greedy);
    // One token is left to draw from.
    config(r#"{"do_sample": true, "temperature": 1.5, "top_p": 0, "max_new_tokens": 20}"#);
    assert_eq!(run(&[]), greedy);
    assert_eq!(run(&["--top-p", "1", "--top-k", "0", "--temperature", "1e-4"]), greedy);
    config("{}");
    assert_eq!(run(&["--max-new-tokens", "20", "--temperature", "1.5", "--top-p", "0"]), greedy);
    // Sampling reads them, unless an option goes before.
    for (field, words) in [
        (r#""temperature": 0"#, "`temperature` must be a positive number"),
        (r#""temperature": -1"#, "found -1"),
        (r#""top_k": -1"#, "`top_k` must be 0"),
        (r#""top_p": -0.5"#, "`top_p` must be 0 or a positive number"),
        (r#""min_p": 2"#, "`min_p` must be from 0 to 1"),
    ] {
        config(&format!(r#"{{"do_sample": true, "max_new_tokens": 20, {field}}}"#));
        refused(&sinew("generate", path, &["--prompt", "Hello"], ""), &["generation_config.json", words]);
        refused(&sinew("chat", path, &[], "Hello\n"), &["generation_config.json", words]);
        assert_eq!(run(&["--temperature", "0"]), greedy, "{field}");
        let others = ["--temperature", "1.5", "--top-k", "40", "--top-p", "0.9", "--min-p", "0"];
        assert_eq!(run(&others), sampled, "{field}");
    }
    for (option, value) in [("--top-p", "-0.1"), ("--top-p", "1.5"), ("--min-p", "2"), ("--min-p", "-1")] {
        let field = option.trim_start_matches("--").replace('-', "_");
        refused(&sinew("generate", path, &["--prompt", "Hello", option, value], ""), &["sampling parameter", &field]);
    }
    config(r#"{"repetition_penalty": 0, "max_new_tokens": 20}"#);
    refused(&sinew("generate", path, &["--prompt", "Hello"], ""), &["generation_config.json", "`repetition_penalty`"]);
    config(r#"{"do_sample": true, "top_p": "most"}"#);
    let output = sinew("generate", path, &["--prompt", "Hello"], "");
    refused(&output, &["generation_config.json", "`top_p`", "\"most\""]);
    refused(&sinew("chat", path, &[], "Hello\n"), &["generation_config.json", "`top_p`"]);
    // What is asked of an answer does not concern who wants none.
    let logits = path.join("logits.safetensors");
    let logits = logits.to_str().expect("the path is UTF-8");
    stdout(&sinew("logits", path, &["--tokens", "1,2", "--output", logits], ""));
    stdout(&command::run(command().arg("inspect").arg(path), ""));
}

#[test]
fn a_prompt_as_long_as_max_length_is_refused() {
    let copy = copy(FIXTURE);
    let path = copy.path();
    let config = |text: String| std::fs::write(path.join("generation_config.json"), text).expect("the file is written");
    let prompt = model().encode("Hello").expect("tokens").len();
    for most in [0, prompt - 1, prompt] {
        config(format!(r#"{{"max_length": {most}}}"#));
        let of_most = format!("`max_length` is {most} ");
        let words = ["generation_config.json", &of_most, &format!("has {prompt};"), "--max-new-tokens"];
        refused(&sinew("generate", path, &["--prompt", "Hello"], ""), &words);
        refused(&sinew("chat", path, &[], "Hello\n"), &["generation_config.json", &of_most, "--max-new-tokens"]);
        stdout(&sinew("generate", path, &["--prompt", "Hello", "--max-new-tokens", "2"], ""));
    }
    config(format!(r#"{{"max_length": {prompt}, "max_new_tokens": 2}}"#));
    stdout(&sinew("generate", path, &["--prompt", "Hello"], ""));
    config(format!(r#"{{"max_length": {}}}"#, prompt + 1));
    let lines = path.join("prompts.txt");
    std::fs::write(&lines, "Hello\n\nHello to all of you\n").expect("the file is written");
    let lines = lines.to_str().expect("the path is UTF-8");
    let output = sinew("generate", path, &["--prompts-file", lines], "");
    refused(&output, &["line 3 of", lines, "`max_length` is", "--max-new-tokens"]);

    // The first turn fits, and the second does not.
    let files = Folder::new(path);
    let template = files.chat_template().expect("it is read").expect("there is one");
    let first = template.render(&Conversation::default().with("user", "Hello")).expect("rendered");
    let first = model().tokenizer().expect("there is one").encode(&first, false).expect("tokens").len();
    config(format!(r#"{{"max_length": {}}}"#, first + 2));
    stdout(&sinew("chat", path, &["--ignore-eos"], "Hello\n"));
    let output = sinew("chat", path, &["--ignore-eos"], "Hello\nHello\n");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains(&format!("`max_length` is {} ", first + 2)), "{stderr}");
    assert!(stderr.contains("/reset"), "{stderr}");
    stdout(&sinew("chat", path, &["--ignore-eos"], "Hello\n/reset\nHello\n"));
    stdout(&sinew("chat", path, &["--ignore-eos", "--max-new-tokens", "2"], "Hello\nHello\n"));
}

#[test]
fn engines_refuse_prompts_of_max_length() {
    let mut model = model();
    let options = GenerateOptions { max_length: Some(4), ..GenerateOptions::default() };
    let mut answer = |prompt: &[u32]| model.generate(prompt, &options, &mut |_| ControlFlow::Continue(()));
    assert_eq!(answer(&[1, 2, 3]).expect("one token is left").tokens.len(), 1);
    assert!(answer(&[1, 2, 3, 4]).expect_err("none is left").one_line().contains("`max_length` is 4 "));
    let mut engine = Engine::new(model, EngineOptions::default());
    let request = |prompt: &[u32]| Request { options: options.clone(), ..Request::new(prompt.to_vec()) };
    let line = engine.submit(request(&[1, 2, 3, 4, 5])).expect_err("none is left").one_line();
    assert!(line.contains("`max_length` is 4 ") && line.contains("has 5;"), "{line}");
    engine.submit(request(&[1, 2])).expect("two tokens are left");
    let mut tokens = 0;
    while !engine.is_idle() {
        let events = engine.step().expect("a step");
        tokens += events.iter().filter(|event| matches!(event.what, Happening::Token { .. })).count();
    }
    assert_eq!(tokens, 2);
}

#[test]
fn a_prompt_that_is_too_long_is_refused_in_the_same_words_everywhere() {
    const WORDS: &str = "the prompt has more than the 40 tokens of the context";
    let mut model =
        LanguageModel::load(folder(), &LoadOptions { context: Some(40), ..LoadOptions::default() }).expect("a model");
    let mut sequence = model.sequence();
    let refusals = [
        model.encode(&"word ".repeat(1 << 20)).expect_err("a long text"),
        model.prefill(&mut sequence, &[1; 41]).expect_err("many tokens"),
        model.generate(&[1; 41], &limited(1), &mut |_| ControlFlow::Continue(())).expect_err("many tokens"),
    ];
    for refusal in refusals {
        assert_eq!(refusal.one_line(), WORDS);
    }
}

#[test]
fn biases_penalties_and_logprobs_are_options() {
    let run = |more: &[&str]| -> Value {
        let common = ["--prompt", "Hello", "--ignore-eos", "--json", "--max-new-tokens", "12", "--logprobs", "3"];
        serde_json::from_str(&stdout(&sinew("generate", &folder(), &[&common[..], more].concat(), ""))).expect("JSON")
    };
    let plain = run(&[]);
    let first = &plain["tokens"][0];
    let logprobs = plain["logprobs"].as_array().expect("logprobs");
    assert_eq!(logprobs.len(), 12);
    for (line, token) in logprobs.iter().zip(plain["tokens"].as_array().expect("tokens")) {
        // What is greedy is the most probable.
        assert_eq!((&line["token"], &line["top"][0]["token"]), (token, token));
        assert_eq!(line["logprob"], line["top"][0]["logprob"]);
        let each: Vec<f64> =
            line["top"].as_array().expect("a list").iter().filter_map(|t| t["logprob"].as_f64()).collect();
        assert!(each.len() == 3 && each.is_sorted_by(|a, b| a >= b) && each[0] < 0.0, "{each:?}");
    }
    let banned = run(&["--logit-bias", &format!("{first}=-inf")]);
    assert_ne!(&banned["tokens"][0], first);
    // The model's own opinion is not changed by what was done to its logits.
    assert_eq!(banned["logprobs"][0]["top"], plain["logprobs"][0]["top"]);
    let forced = run(&["--logit-bias", "7=1000"]);
    assert!(forced["tokens"].as_array().expect("tokens").iter().all(|token| token == 7));
    for penalty in ["--presence-penalty", "--frequency-penalty"] {
        let other = run(&["--logit-bias", "7=1000", penalty, "100000"]);
        assert_eq!(other["tokens"][0], 7);
        assert_ne!(other["tokens"][1], 7, "{penalty}");
    }
    let generate = |more: &[&str]| sinew("generate", &folder(), &[&["--prompt", "x"], more].concat(), "");
    refused(&generate(&["--logit-bias", "7"]), &["ID=F"]);
    refused(&generate(&["--logit-bias", "99999=1"]), &["99999", "1003 tokens"]);
    refused(&generate(&["--logit-bias", "1=nan"]), &["logit_bias"]);
    refused(&generate(&["--logprobs", "3"]), &["--json"]);
}

fn in_session(
    model: &mut LanguageModel,
    session: &mut Session,
    prompt: &[u32],
    options: &GenerateOptions,
) -> Generation {
    model.generate_in(session, prompt, options, &mut |_| ControlFlow::Continue(())).expect("an answer")
}

#[test]
fn a_session_gives_the_bits_of_a_start_from_nothing() {
    let mut model =
        LanguageModel::load(folder(), &LoadOptions { prefill_chunk: 16, ..LoadOptions::default() }).expect("a model");
    let options = GenerateOptions { ignore_eos: true, logprobs: Some(5), ..limited(9) };
    let prompts: Vec<Vec<u32>> = vec![
        (0..50).map(|i| i * 17 % 1003).collect(),
        (0..70).map(|i| i * 17 % 1003).collect(),
        // Shorter, equal, and of another beginning.
        (0..33).map(|i| i * 17 % 1003).collect(),
        (0..33).map(|i| i * 17 % 1003).collect(),
        (0..20).map(|i| i * 19 % 1003).collect(),
    ];
    let expected: Vec<Generation> = prompts
        .iter()
        .map(|p| model.generate(p, &options, &mut |_| ControlFlow::Continue(())).expect("an answer"))
        .collect();
    let mut session = model.session();
    for (at, (prompt, expected)) in prompts.iter().zip(&expected).enumerate() {
        let found = in_session(&mut model, &mut session, prompt, &options);
        assert_eq!(found.cached_tokens, [0, 50, 33 - 1, 33 - 1, 1][at]);
        assert_eq!((&found.tokens, &found.logprobs), (&expected.tokens, &expected.logprobs), "prompt {at}");
    }
    // What was answered is in the cache, but for the last token, which nothing came after.
    let first = in_session(&mut model, &mut session, &prompts[0], &options);
    let longer: Vec<u32> = prompts[0].iter().chain(&first.tokens).copied().chain([3, 4]).collect();
    let next = in_session(&mut model, &mut session, &longer, &options);
    assert_eq!(next.cached_tokens, 50 + first.tokens.len() - 1);
    drop(session);
    assert_eq!(model.cache().stats().used, 0);
    let alone = model.generate(&longer, &options, &mut |_| ControlFlow::Continue(())).expect("an answer");
    assert_eq!((next.tokens, next.logprobs), (alone.tokens, alone.logprobs));
}

#[test]
fn a_session_goes_on_after_what_was_broken_off_or_refused() {
    let mut model =
        LanguageModel::load(folder(), &LoadOptions { prefill_chunk: 10, ..LoadOptions::default() }).expect("a model");
    let prompt: Vec<u32> = (0..35).map(|i| i * 17 % 1003).collect();
    let options = GenerateOptions { ignore_eos: true, logprobs: Some(0), ..limited(5) };
    let alone = model.generate(&prompt, &options, &mut |_| ControlFlow::Continue(())).expect("an answer");
    let mut session = model.session();
    for calls in [1, 2, 4, 6] {
        let mut left = calls;
        let broken = model.generate_in(&mut session, &prompt, &options, &mut |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        broken.expect("to end is no error");
    }
    assert!(session.tokens().starts_with(&prompt));
    let before = session.tokens().len();
    model.generate_in(&mut session, &[5000], &options, &mut |_| ControlFlow::Continue(())).expect_err("no such token");
    assert_eq!(session.tokens().len(), before);
    let found = in_session(&mut model, &mut session, &prompt, &options);
    assert_eq!((found.cached_tokens, found.tokens, found.logprobs), (34, alone.tokens, alone.logprobs));
}

#[test]
fn streams_cut_no_character_and_no_stop_string_within_one() {
    // 259 byte tokens, as SentencePiece falls back to, and nothing else.
    let vocab: serde_json::Map<String, Value> = (0..256u32)
        .map(|byte| (format!("<0x{byte:02X}>"), byte.into()))
        .chain([("<unk>".to_owned(), 256.into())])
        .collect();
    let json = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true, "unk_token": "<unk>"},
    });
    let tokenizer = Tokenizer::from_bytes(json.to_string().as_bytes()).expect("a tokenizer");
    let text = "aé👩‍👩‍👧東 STÖP après";
    // Each byte is a token, so that all stop strings end within a character's tokens; "ê" begins with the byte of "é".
    assert_eq!("ê".as_bytes()[0], "é".as_bytes()[0]);
    for (stop, expected) in [(None, text), (Some("東"), "aé👩‍👩‍👧"), (Some("Ö"), "aé👩‍👩‍👧東 ST"), (Some("👧東 S"), "aé👩‍👩‍")]
    {
        let stops = stop::StopStrings::new(["ê"].into_iter().chain(stop)).expect("no empty text");
        let mut stream = TextStream::new(&tokenizer, true, stops);
        let mut shown = String::new();
        let mut stopped = false;
        for byte in text.bytes() {
            let step = stream.push(byte.into()).expect("it decodes");
            assert!(!step.text.contains('\u{fffd}'), "{:?}", step.text);
            shown.push_str(&step.text);
            assert!(text.starts_with(&shown));
            stopped = step.stopped_by.is_some();
            if stopped {
                break;
            }
        }
        if !stopped {
            shown.push_str(&stream.finish().expect("it decodes").text);
        }
        assert_eq!((shown.as_str(), stopped), (expected, stop.is_some()));
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_answer_and_not_the_conversation() {
    use std::io::{BufRead, BufReader, Read};

    // An answer of many seconds.
    let copy = copy(FIXTURE);
    with_field(copy.path(), "max_position_embeddings", &Value::from(60_000));
    let mut child = command()
        .args(["chat", "--context", "60000", "--ignore-eos", "--model"])
        .arg(copy.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command starts");
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
    input.write_all(b"Hello\n").expect("it reads");
    output.read_exact(&mut [0]).expect("an answer begins");
    let kill = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(kill.expect("kill is there").success());
    input.write_all(b"/stats\n/quit\n").expect("it still reads");
    let mut rest = Vec::new();
    output.read_until(b'\0', &mut rest).expect("it still answers");
    assert!(String::from_utf8_lossy(&rest).contains("1 answers; context"));
    assert!(child.wait().expect("it ends").success());
}
