use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::*;

/// The printable character that byte-level BPE writes for a byte.
fn byte_char(byte: u8) -> char {
    match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        _ => {
            let before = (0..byte).filter(|b| !matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)).count();
            char::from_u32(256 + before as u32).expect("below the surrogates")
        }
    }
}

/// The tokenizer of a file, which has to be the one that the crate itself reads, where there is one.
fn read(json: &Value) -> Result<Tokenizer> {
    let text = json.to_string();
    let tokenizer = Tokenizer::from_bytes(text.as_bytes())?;
    let mut whole = Inner::from_bytes(text.as_bytes()).expect("the crate takes it");
    whole.with_padding(None).with_truncation(None).expect("turned off");
    let [ours, whole] = [&tokenizer.inner, &whole].map(|tokenizer| tokenizer.to_string(false).expect("JSON"));
    assert_eq!(ours, whole);
    Ok(tokenizer)
}

/// Byte-level BPE as GPT-2 and Qwen have it: 256 bytes, then merges, then the special tokens `<s>` and `</s>`.
pub(crate) fn byte_level() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255 {
        vocab.insert(byte_char(byte).to_string(), json!(byte));
    }
    let mut merges = Vec::new();
    for (left, right) in [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")] {
        merges.push(format!("{left} {right}"));
        vocab.insert(format!("{left}{right}"), json!(vocab.len()));
    }
    let special = |id: usize, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    let next = vocab.len();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let begin = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    let end = json!({"SpecialToken": {"id": "</s>", "type_id": 0}});
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let json = json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "</s>"},
        "added_tokens": [special(next, "<s>"), special(next + 1, "</s>")],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, sequence("A"), end],
            "pair": [sequence("A"), sequence("B")],
            "special_tokens": {
                "<s>": {"id": "<s>", "ids": [next], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [next + 1], "tokens": ["</s>"]}
            }
        },
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab,
                  "merges": merges}
    });
    read(&json).expect("a valid tokenizer")
}

/// SentencePiece-like BPE as Llama 2 has it: `▁` for spaces, a leading one stripped, and bytes as `<0x..>`.
pub(crate) fn sentencepiece() -> Tokenizer {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255u8 {
        vocab.insert(format!("<0x{byte:02X}>"), json!(byte));
    }
    for word in ["▁", "▁hello", "▁world", "wo", "a", "b", "."] {
        vocab.insert(word.to_owned(), json!(vocab.len()));
    }
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": vocab.len(), "content": "</s>", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        ]},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "vocab": vocab, "merges": []}
    });
    read(&json).expect("a valid tokenizer")
}

pub(crate) fn folder_of(files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, value) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("inside the folder")).expect("created");
        fs::write(path, value.to_string()).expect("written");
    }
    folder
}

/// transformers 5.24 gives these ids.
#[test]
fn legacy_added_tokens_are_whole_tokens() {
    let file = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": null, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}
    });
    let added = json!({"<q>": 2, "<|im_end|>": 3});
    let config = json!({"eos_token": "<|im_end|>"});
    let read = |config: Value| {
        let files =
            [("tokenizer.json", file.clone()), ("added_tokens.json", added.clone()), ("tokenizer_config.json", config)];
        Tokenizer::read(&Documents::new(folder_of(&files).path())).expect("valid").expect("there")
    };
    let tokenizer = read(config.clone());
    assert_eq!(tokenizer.encode("a<q>b<|im_end|>", false).expect("encoded"), [0, 2, 1, 3]);
    assert_eq!([2, 3].map(|id| tokenizer.is_special(id)), [false, true]);
    // Named tokens of the model are special; they count alone.
    let own = json!({"foo_token": "<z>"});
    let found = |config: Value| read(config).token_to_id("<z>");
    assert_eq!(found(json!({"model_specific_special_tokens": own})), Some(4));
    assert_eq!(found(json!({"model_specific_special_tokens": own, "x_token": "<a>"})), None);
    // A config with `added_tokens_decoder` takes the place of the file.
    assert_eq!(read(json!({"added_tokens_decoder": {}})).token_to_id("<q>"), None);
}

#[test]
fn encoding_adds_special_tokens_on_request_and_neither_cuts_nor_pads() {
    let tokenizer = byte_level();
    let hello = tokenizer.token_to_id("hello").expect("merged");
    let [begin, end] = ["<s>", "</s>"].map(|token| tokenizer.token_to_id(token).expect("special"));
    assert_eq!(tokenizer.encode("hello", false).expect("encoded"), [hello]);
    assert_eq!(tokenizer.encode("hello", true).expect("encoded"), [begin, hello, end]);
    assert_eq!(tokenizer.encode("</s>", false).expect("encoded"), [end]);
    let long = tokenizer.encode(&"é".repeat(50), true).expect("encoded");
    assert_eq!(long.len(), 102, "the file's truncation to 4 is not applied");
    assert_eq!(tokenizer.decode(&long, true).expect("decoded"), "é".repeat(50));
    assert_eq!(tokenizer.encode("", false).expect("encoded"), [0u32; 0]);
    assert_eq!(tokenizer.decode(&[u32::MAX, hello], true).expect("decoded"), "hello");
    assert_eq!(tokenizer.vocab_size(), end as usize + 1);
    assert!(tokenizer.contains(end) && !tokenizer.contains(end + 1));
    assert_eq!(tokenizer.id_to_token(end).as_deref(), Some("</s>"));
}

#[test]
fn a_text_is_cut_between_its_special_tokens() {
    let tokenizer = byte_level();
    let whole = tokenizer.encode("abcdef", true).expect("encoded");
    for max in 0..10 {
        let Ok(encoded) = tokenizer.encode_within("abcdef", max) else {
            assert!(max < 2, "two special tokens fit into {max}");
            continue;
        };
        assert_eq!(encoded.len(), max.min(whole.len()));
        assert_eq!(encoded.last(), whole.last());
        assert_eq!(encoded[..encoded.len() - 1], whole[..encoded.len() - 1]);
    }
}

#[test]
fn damaged_tokenizers_are_errors() {
    for bytes in [&b""[..], b"{}", b"[]", b"\xff\xfe", br#"{"version": "1.0", "model": {"type": "BPE"}}"#] {
        let line = Tokenizer::from_bytes(bytes).expect_err("damaged").one_line();
        assert!(line.starts_with("tokenizer.json is not a valid tokenizer: "), "{line}");
    }
    let empty = tempfile::tempdir().expect("a folder");
    assert!(Tokenizer::read(&Documents::new(empty.path())).expect("none is no error").is_none());
    let wrong = folder_of(&[("tokenizer.json", json!([]))]);
    let line = Tokenizer::read(&Documents::new(wrong.path())).expect_err("damaged").one_line();
    assert!(line.contains(&*wrong.path().to_string_lossy()), "{line}");
}

#[test]
fn a_charsmap_that_lies_about_its_size_is_refused_before_anything_is_allocated() {
    let with = |map: &str| {
        let json = json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "truncation": null, "padding": null,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": map}]},
            "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"},
        });
        Tokenizer::from_bytes(json.to_string().as_bytes()).map(|_| ())
    };
    for map in ["/////w==", "AAAA", "", "BAAAAA==", "no base64!"] {
        let line = with(map).expect_err("refused").one_line();
        assert!(line.contains("precompiled_charsmap"), "{map}: {line}");
    }
}

/// The file of a tokenizer of single letters with another value for each of `fields`.
fn file_with(fields: &[(&str, Value)]) -> Value {
    let mut json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "?", "vocab": {"a": 0, "?": 1}, "merges": []},
    });
    for (name, value) in fields {
        json[*name] = value.clone();
    }
    json
}

fn with(fields: &[(&str, Value)]) -> Result<Tokenizer> {
    read(&file_with(fields))
}

/// As [`with`], where the crate, which has another syntax for regular expressions, would read another tokenizer.
fn with_regex(fields: &[(&str, Value)]) -> Result<Tokenizer> {
    Tokenizer::from_bytes(file_with(fields).to_string().as_bytes())
}

fn added(count: usize, content: impl Fn(usize) -> String) -> Value {
    let token = |i| {
        json!({"id": i + 2, "content": content(i), "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": true, "special": false})
    };
    (0..count).map(token).collect()
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

fn charsmap(texts: &[u8]) -> Value {
    let map = base64::encode([&4u32.to_le_bytes()[..], &[0; 4], texts].concat());
    json!({"type": "Precompiled", "precompiled_charsmap": map})
}

fn template(references: usize, texts: usize, ids: usize) -> Value {
    let mut pieces = vec![json!({"SpecialToken": {"id": "a", "type_id": 0}}); references];
    pieces.resize(references + texts, json!({"Sequence": {"id": "A", "type_id": 0}}));
    json!({"type": "TemplateProcessing", "single": pieces, "pair": [],
           "special_tokens": {"a": {"id": "a", "ids": vec![0; ids], "tokens": vec!["a"; ids]}}})
}

#[test]
fn tokenizers_that_make_much_of_little_are_refused() {
    let steps = |name: &str, steps: Vec<Value>| json!({"type": "Sequence", name: steps});
    let fourfold = || replace("a", "aaaa");
    let nested = (0..12).fold(fourfold(), |inner, _| steps("normalizers", vec![inner, fourfold()]));
    let regex = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y".repeat(2000)});
    let prepend = json!({"type": "Prepend", "prepend": "x".repeat(1000)});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": false});
    let model = |field: &str, value: Value| {
        let mut model = json!({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
                               "max_input_chars_per_word": 100, "vocab": {"a": 0, "?": 1}});
        model[field] = value;
        model
    };
    let unigram = |pieces: &[String]| {
        let pieces = pieces.iter().map(|piece| json!([piece, -1.0]));
        let vocab: Vec<Value> = [json!(["?", 0.0])].into_iter().chain(pieces).collect();
        json!({"type": "Unigram", "unk_id": 0, "vocab": vocab})
    };
    for (what, field, value, words) in [
        ("replacements", "normalizer", steps("normalizers", vec![fourfold(); 12]), "normalizer makes"),
        ("replacements in replacements", "normalizer", nested, "normalizer makes"),
        ("a long replacement", "normalizer", replace("a", &"b".repeat(127_000)), "127000 bytes"),
        ("one that matches nothing", "normalizer", regex, "normalizer makes"),
        ("an empty pattern", "normalizer", replace("", &"b".repeat(2000)), "normalizer makes"),
        ("prefixes", "normalizer", steps("normalizers", vec![prepend; 100]), "normalizer makes"),
        ("many steps", "normalizer", steps("normalizers", vec![json!({"type": "NFC"}); 5000]), "4096 values"),
        ("a long text for a character", "normalizer", charsmap(&[b'a'; 2000]), "normalizer makes"),
        ("bytes of bytes", "pre_tokenizer", steps("pretokenizers", vec![byte_level.clone(); 12]), "pre_tokenizer"),
        (
            "a long pattern",
            "pre_tokenizer",
            json!({"type": "Split", "pattern": {"String": "x".repeat(5000)},
            "behavior": "Isolated", "invert": false}),
            "5000 bytes",
        ),
        ("a decoder", "decoder", replace("a", &"b".repeat(10 << 20)), "10485760 bytes"),
        (
            "a decoder of blanks",
            "decoder",
            steps("decoders", vec![json!({"type": "BPEDecoder", "suffix": ""}); 12]),
            "decoder makes",
        ),
        ("a template", "post_processor", template(100, 1, 100), "10000 special tokens"),
        ("a long template", "post_processor", template(100_000, 1, 1000), "4096 values"),
        (
            "templates in templates",
            "post_processor",
            json!({"type": "Sequence", "processors": vec![template(20, 1, 10); 10]}),
            "2000 special tokens",
        ),
        ("a text twice", "post_processor", template(0, 2, 0), "the text 2 times"),
        ("many added tokens", "added_tokens", added(200_000, |i| format!("<{i}>")), "more than 131072"),
        ("a long added token", "added_tokens", added(1, |_| "x".repeat(5000)), "5000 bytes"),
        ("long added tokens", "added_tokens", added(4500, |i| format!("{i:01000}")), "4194304 bytes"),
        ("added tokens with little in common", "added_tokens", added(600, |i| format!("{i}").repeat(340)), "states"),
        ("long words", "model", model("max_input_chars_per_word", json!(1_000_000)), "max_input_chars_per_word"),
        ("a long prefix", "model", model("continuing_subword_prefix", json!("#".repeat(5000))), "5000 bytes"),
        ("a list for a step", "normalizer", steps("normalizers", vec![json!([{"String": "a"}, "aaaa"])]), "no object"),
        ("a list for the steps", "normalizer", json!([[[{"String": "a"}, "aaaa"]]]), "no object"),
        (
            "a list for a template",
            "post_processor",
            json!([[{"Sequence": {"id": "A", "type_id": 0}}], [], {}]),
            "no object",
        ),
        (
            "a list for a piece",
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [{"Sequence": ["A", 0]}], "pair": [], "special_tokens": {}}),
            "the template `single` has",
        ),
        (
            "a list for a token",
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}], "pair": [],
                   "special_tokens": {"a": ["a", [0, 0], ["a", "a"]]}}),
            "a token without ids",
        ),
        (
            "a normal form of a replacement",
            "normalizer",
            steps("normalizers", vec![replace("a", &"\u{fdfa}".repeat(330)), json!({"type": "NFKC"})]),
            "normalizer makes",
        ),
        ("a long token", "model", model("vocab", json!({"?": 0, "x".repeat(2000): 1})), "a token of 2000 bytes"),
        ("a long piece", "model", unigram(&["x".repeat(300)]), "a token of 300 bytes"),
        (
            "pieces with little in common",
            "model",
            unigram(&(0..40_000).map(|i| format!("{i:07}").repeat(30)).collect::<Vec<_>>()),
            "states",
        ),
        (
            "a long merge",
            "model",
            json!({"type": "BPE", "vocab": {"a": 0}, "merges": [format!("a {}", "x".repeat(3000))]}),
            "3000 bytes",
        ),
        ("a prefix of 100 bytes", "model", model("continuing_subword_prefix", json!("#".repeat(100))), "64 bytes"),
        ("words of 1000 letters", "model", model("max_input_chars_per_word", json!(1000)), "up to 256"),
        ("a vocabulary of lists", "model", model("vocab", json!([[1, 2]])), "expected a string"),
        ("merges of numbers", "model", json!({"type": "BPE", "vocab": {"a": 0}, "merges": [0]}), "expected a merge"),
    ] {
        let line = with(&[(field, value)]).expect_err(what).one_line();
        assert!(line.starts_with("tokenizer.json is not a valid tokenizer: "), "{what}: {line}");
        assert!(line.contains(words), "{what}: {line}");
    }
    // What the parts make of a byte together.
    let normalizer = steps("normalizers", vec![fourfold(); 4]);
    with(&[("normalizer", normalizer.clone())]).expect("256 of one");
    let line =
        with(&[("normalizer", normalizer.clone()), ("pre_tokenizer", metaspace)]).expect_err("2048 of one").one_line();
    assert!(line.contains("pre_tokenizer, after the normalizer, makes"), "{line}");
    let line = with(&[("normalizer", normalizer), ("added_tokens", added(3, |i| format!("{i}").repeat(1000)))]);
    assert!(line.expect_err("more than 2 kB by 256").one_line().contains("states"));
    // A text may be short enough.
    let blanks = with(&[("normalizer", replace("a", &" ".repeat(1000)))]).expect("1000 of one");
    let (short, long) = ("a".repeat(1000), "a".repeat(4000));
    for fits in [blanks.encode(&short, true).map(drop), blanks.encode_within(&short, 5).map(drop)] {
        fits.expect("a million blanks");
    }
    for outcome in [blanks.encode(&long, true).map(drop), blanks.encode_within(&long, 5).map(drop)] {
        let line = outcome.expect_err("four million").one_line();
        assert!(line.contains("a text of 4000 bytes") && line.contains("4000000"), "{line}");
    }
}

fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// The pieces into which a regular expression splits a text.
fn pieces(regex: &str, text: &str) -> Vec<String> {
    let words = json!({"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0}});
    let tokenizer = with_regex(&[("pre_tokenizer", split(regex)), ("model", words)]).expect(regex);
    let encoding = tokenizer.inner.encode(text, false).expect("encoded");
    encoding.get_offsets().iter().map(|&(start, end)| text[start..end].to_owned()).collect()
}

#[test]
fn regular_expressions_are_rubys() {
    // Each as by `[piece for piece, _ in Split(Regex(regex), "isolated").pre_tokenize_str(text)]` in Python.
    for (regex, text, expected) in [
        (r"\p{N}{1,3}+", "a1234567", &["a", "1234567"][..]),
        (r"a{0,2}+b", "aaaab", &["aaaab"]),
        (r"a{,2}+b", "aaaab", &["aaaab"]),
        (r"\p{N}{1,3}", "1234567", &["123", "456", "7"]),
        (r"\x{61}{2}\{1}+", "aa{1}}b", &["aa{1}}", "b"]),
        (r"a{,2}", "aaab", &["aa", "a", "b"]),
        (r"a{1,2}?", "aab", &["a", "a", "b"]),
        (r"a{,}", "aa{,}", &["a", "a{,}"]),
        (r"a{ 1}", "a{ 1}", &["a{ 1}"]),
        (r"\s+$", "line1 \nline2 \n", &["line1", " ", "\nline2", " \n"]),
        (r"1$|^l", "line1\nline1\n", &["l", "ine", "1", "\n", "l", "ine", "1", "\n"]),
        (r"x$", "x\nx\n", &["x", "\n", "x", "\n"]),
        (r"$", "a\nb\n", &["a", "\nb", "\n"]),
        (r"^", "a\nb\n", &["a\n", "b\n"]),
        (r"$\n^", "a\nb\n", &["a", "\n", "b\n"]),
        (r"(?:\n|^)a", "\naa\na", &["\na", "a", "\na"]),
        (r"\s$\s", "a \n\n b", &["a", " \n", "\n b"]),
        (r"[^$^]+", "a$b^", &["a", "$", "b", "^"]),
        (r"\$a\^|[\]$(?m)]", "$a^$]m", &["$a^", "$", "]", "m"]),
        (r"[]a(?s]+", "]a(b", &["]a(", "b"]),
        (r"(?i)b|c", "aC aB C", &["a", "C", " a", "B", " ", "C"]),
        (r"(?i:'s)|(?<x>y)", "a'Sy", &["a", "'S", "y"]),
    ] {
        assert_eq!(pieces(regex, text), expected, "{regex} in {text:?}");
    }
    for regex in [
        r"(?m).+",
        r"(?s:.)",
        r"(?x)a b",
        r"a(?i)b|c",
        r"(?i-m:a)",
        r"(?#$)a",
        r"(?~a)",
        r"(?(1)a)",
        r"a{2}+",
        r"a{1,3}++",
        r"a{2,3}+",
        r"a{2}?3",
        r"a{2}{3}",
        r"a+{3}",
        r"a+?+",
        r"a{1,3}+?",
        r"a{1,3}?+",
        r"a{0}+",
    ] {
        let line = with(&[("pre_tokenizer", split(regex))]).expect_err(regex).one_line();
        assert!(line.contains("the regular expression ") && line.contains("in Ruby's syntax"), "{regex}: {line}");
    }
}

#[test]
fn regular_expressions_that_try_too_much_are_refused() {
    let replace = |regex: &str| json!({"type": "Replace", "pattern": {"Regex": regex}, "content": "y"});
    let all = |name: &str, steps: Vec<Value>| json!({"type": "Sequence", name: steps});
    let take = |field, value: &Value| with_regex(&[(field, value.clone())]).map(drop);
    // GPT-2's, that of the models with o200k, tiktoken's cl100k, SuperBPE's, and one of StarCoder's kind.
    for published in [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
        r"(?=(\d{3})+(?!\d))",
        r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    ] {
        take("pre_tokenizer", &all("pretokenizers", vec![split(published); 2])).expect(published);
    }
    take("decoder", &replace(r"(?<!a) +| (?=[.,])")).expect("nothing that repeats is tried");
    let hostile = [r"(?:.|..)+(?=\bqz)q", r"(?=((?:a|aa)+)\1z)a", r"(?:(?:a?){40})(?!a)", r"(?:|a|.){20}\bq"];
    for (field, step) in
        [("decoder", &replace as &dyn Fn(&str) -> Value), ("normalizer", &replace), ("pre_tokenizer", &split)]
    {
        for regex in hostile {
            let line = take(field, &step(regex)).expect_err(regex).one_line();
            assert!(line.contains("match in too many ways"), "{field} {regex}: {line}");
        }
    }
    for (field, value) in [
        ("decoder", replace(r"\s+(?!\S)")),
        ("pre_tokenizer", all("pretokenizers", vec![split(r"\s+(?!\S)"); 13])),
        ("normalizer", replace(r"\s+\w+(?!\S)")),
    ] {
        let line = take(field, &value).expect_err(field).one_line();
        assert!(line.contains("match in too many ways"), "{field}: {line}");
    }
}

#[test]
fn added_tokens_are_normalized_in_no_time() {
    let steps = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    let replace = |regex: &str| json!({"type": "Replace", "pattern": {"Regex": regex}, "content": "y"});
    let lowercase = || json!({"type": "Lowercase"});
    let bert = json!({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
                      "lowercase": true});
    let repeated = |n: usize| added(n, |i| format!("{}{i:x}", "a".repeat(24)));
    for (what, normalizer, tokens) in [
        ("steps", steps(vec![lowercase(); 1000]), added(100_000, |i| format!("{i:x}"))),
        ("nested steps", steps(vec![steps(vec![lowercase(); 100]); 10]), repeated(2000)),
        ("BERT's steps", steps(vec![bert; 50]), repeated(2000)),
        ("long tokens with a common beginning", steps(vec![lowercase(); 8]), added(2000, |i| format!("{i:0>1000}"))),
        ("what is tried", replace(r"\w+(?!\w|z)"), repeated(2000)),
        ("what looks far", replace(r"\w*z"), added(100, |i| format!("{i:0>1000}"))),
    ] {
        let line = with(&[("normalizer", normalizer), ("added_tokens", tokens)]).expect_err(what).one_line();
        assert!(line.contains("takes too long over the added_tokens"), "{what}: {line}");
    }
    // Gemma's, a model of speech's, and one of XLM-RoBERTa's kind with tokens of its own.
    let blanks = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
    let in_steps = steps(vec![
        json!({"type": "NFKC"}),
        json!({"type": "Strip", "strip_left": false, "strip_right": true}),
        replace(" {2,}"),
    ]);
    for (normalizer, tokens) in [
        (blanks, added(6400, |i| format!("<unused{i}>"))),
        (json!({"type": "NFC"}), added(50_000, |i| format!("<|s_{i}|>"))),
        (in_steps, added(300, |i| format!("<|s_{i}|>"))),
        (replace(r"\s+(?!\S)"), added(30, |i| format!("<|s_{i}|>"))),
    ] {
        with(&[("normalizer", normalizer), ("added_tokens", tokens)]).expect("taken");
    }
}

#[test]
fn unigram_may_have_the_pieces_of_the_largest_vocabulary() {
    // XLM-V's are 901,629.
    let vocab: Vec<Value> = (0..902_000).map(|i| json!([i.to_string(), -1.0])).collect();
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": vocab});
    let tokenizer = with_regex(&[("model", unigram)]).expect("taken");
    assert_eq!(tokenizer.encode("901999", true).expect("encoded"), [901_999]);
}

/// Bytes, with merges of `Ġa`, `aa` and `12` to 256, 257 and 258.
fn of_bytes(pre_tokenizer: Value, added: Value) -> Value {
    let mut bytes: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    bytes.sort();
    bytes.extend(["Ġa", "aa", "12"].map(str::to_owned));
    let vocab: Map<String, Value> = bytes.into_iter().zip(0..).map(|(token, id)| (token, json!(id))).collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["Ġ a", "a a", "1 2"]},
    })
}

fn read_beside(tokenizer: &Value, config: Value) -> Result<Tokenizer> {
    let folder = folder_of(&[("tokenizer.json", tokenizer.clone()), ("tokenizer_config.json", config)]);
    Ok(Tokenizer::read(&Documents::new(folder.path()))?.expect("there is one"))
}

// The ids are those of `AutoTokenizer.from_pretrained(folder)(text).input_ids`, with `a` for every special token.

#[test]
fn a_class_of_bytes_has_its_own_prefix() {
    let bytes =
        |space: bool| json!({"type": "ByteLevel", "add_prefix_space": space, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let sequence = json!({"type": "Sequence", "pretokenizers": [digits, bytes(true)]});
    let ids = |pre_tokenizer: Value, config: Value| {
        let tokenizer = read_beside(&of_bytes(pre_tokenizer, json!([])), config).expect("valid");
        tokenizer.encode("a12", true).expect("encoded")
    };
    let (with, without) = ([256, 258], [64, 258]);
    for class in ["GPT2Tokenizer", "GPT2TokenizerFast", "RobertaTokenizer", "GPTNeoXTokenizer", "GPTNeoXTokenizerFast"]
    {
        for space in [false, true] {
            assert_eq!(ids(bytes(space), json!({"tokenizer_class": class})), without);
            let config = |own: bool| json!({"tokenizer_class": class, "add_prefix_space": own});
            assert_eq!(ids(bytes(space), config(false)), without);
            assert_eq!(ids(bytes(space), config(true)), with);
        }
    }
    // What no class of these says is the file's.
    let other = |own: bool| json!({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": own});
    assert_eq!((ids(bytes(true), other(false)), ids(bytes(false), other(true))), (with.to_vec(), without.to_vec()));
    assert_eq!(ids(bytes(true), json!({})), with);
    assert_eq!(ids(sequence, json!({"tokenizer_class": "GPT2Tokenizer"})), [256, 220, 16, 220, 17]);
}

#[test]
fn tokens_that_the_config_adds_are_added() {
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let token = |content: &str, special: bool, lstrip: bool| {
        json!({"content": content, "single_word": false, "lstrip": lstrip, "rstrip": false, "normalized": false,
               "special": special})
    };
    let (x, y) = (token("<x>", true, false), token("<y>", false, true));
    let in_file = |token: &Value, id: u32| {
        let mut token = token.clone();
        token["id"] = id.into();
        of_bytes(bytes.clone(), json!([token]))
    };
    let none = of_bytes(bytes.clone(), json!([]));
    let read = |file: &Value, tokens: Value| read_beside(file, json!({"added_tokens_decoder": tokens}));
    let ids = |file: &Value, tokens: Value| {
        let tokenizer = read(file, tokens).expect("valid");
        ["aa <x> a", "<y>a"].map(|text| tokenizer.encode(text, true).expect("encoded"))
    };
    let spelled = vec![27, 88, 29, 64];
    // The order of the ids counts, and the ids and the order in the file do not.
    assert_eq!(ids(&none, json!({"400": y, "300": x})), [vec![257, 220, 259, 256], vec![260, 64]]);
    assert_eq!(ids(&none, json!({"260": y, "259": x})), [vec![257, 220, 259, 256], vec![260, 64]]);
    assert_eq!(ids(&none, json!({"259": x})), [vec![257, 220, 259, 256], spelled.clone()]);
    assert_eq!(ids(&none, json!({"259": {"content": "<x>"}})), [vec![257, 220, 259, 256], spelled.clone()]);
    // What the config says of a token goes before what the file says, but for its id.
    let stripped = token("<x>", true, true);
    assert_eq!(ids(&in_file(&x, 259), json!({"259": stripped})), [vec![257, 259, 256], spelled.clone()]);
    assert_eq!(ids(&in_file(&x, 259), json!({"7": x, "260": y})), [vec![257, 220, 259, 256], vec![260, 64]]);
    assert_eq!(ids(&none, json!({"258": token("12", true, false)}))[1], spelled);
    let special = read(&in_file(&token("<x>", false, false), 259), json!({"259": x})).expect("valid");
    assert!(special.is_special(259) && special.decode(&[259], true).expect("decoded").is_empty());

    let long = token(&"x".repeat(2000), false, false);
    let many: Map<String, Value> =
        (0..600).map(|i| (format!("{}", i + 259), token(&format!("{i}").repeat(340), false, false))).collect();
    for (tokens, words) in [
        (json!({"259": long}), "2000 bytes"),
        (many.into(), "states"),
        (json!([x]), "`added_tokens_decoder` must be an object"),
        (json!({"x": x}), "`added_tokens_decoder` has a token at x, which is no id"),
        (json!({"-1": x}), "which is no id"),
        (json!({"259": "<x>"}), "`259` must be an object"),
        (json!({"259": null}), "`added_tokens_decoder.259` is missing"),
        (json!({"259": {"content": 1}}), "`259.content` must be a string"),
        (json!({"259": {"special": true}}), "`259.content` is missing"),
        (json!({"259": {"content": "<x>", "lstrip": 1}}), "`259.lstrip` must be true or false"),
    ] {
        let line = read(&none, tokens).expect_err(words).one_line();
        assert!(line.contains(words), "{words}: {line}");
    }
}

#[test]
fn what_is_wrong_with_the_config_is_said_before_the_tokenizer_is_walked() {
    for config in [
        json!({"truncation_side": 1}),
        json!({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": 1}),
        json!({"tokenizer_class": "BertTokenizer", "do_lower_case": "no"}),
        json!({"added_tokens_decoder": 1}),
        json!([]),
    ] {
        let line = read_beside(&json!("no tokenizer"), config).expect_err("refused").one_line();
        assert!(line.contains("tokenizer_config.json") && !line.contains("tokenizer.json"), "{line}");
    }
}

#[test]
fn what_the_config_says_of_a_tokenizer_goes_before_what_its_own_file_says() {
    let json = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": null,
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                       "strip_accents": null, "lowercase": true},
        "decoder": null, "truncation": null, "padding": null,
        "model": {"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {"?": 0, "a": 1, "A": 2, "é": 3, "e": 4, "漢漢": 5}}
    });
    let ids = |config: Value, text: &str, most: usize| {
        let folder = folder_of(&[("tokenizer.json", json.clone()), ("tokenizer_config.json", config)]);
        let tokenizer = Tokenizer::read(&Documents::new(folder.path())).expect("valid").expect("there is one");
        tokenizer.encode_within(text, most).expect("encoded")
    };
    let text = "a A é 漢漢";
    assert_eq!(ids(json!({}), text, 9), [1, 1, 4, 0, 0]);
    // transformers' class has defaults of its own.
    let bert = |field: &str, value: Value| json!({"tokenizer_class": "BertTokenizer", field: value});
    assert_eq!(ids(bert("do_lower_case", json!(false)), text, 9), [1, 2, 3, 0, 0]);
    assert_eq!(ids(bert("tokenize_chinese_chars", json!(false)), text, 9), [1, 1, 4, 5]);
    assert_eq!(ids(bert("strip_accents", json!(false)), text, 9), [1, 1, 3, 0, 0]);
    assert_eq!(ids(json!({"tokenizer_class": "Other", "do_lower_case": false}), text, 9), [1, 1, 4, 0, 0]);
    assert_eq!(ids(json!({"truncation_side": "right"}), text, 3), [1, 1, 4]);
    assert_eq!(ids(json!({"truncation_side": "left"}), text, 3), [4, 0, 0]);
    let mut other = json.clone();
    other["truncation"] = json!({"direction": "Left", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    other["padding"] = json!({"strategy": {"Fixed": 9}, "direction": "Left", "pad_to_multiple_of": null, "pad_id": 0,
                              "pad_type_id": 0, "pad_token": "?"});
    for (config, expected) in [
        (json!({}), [4, 0, 0]),
        (json!({"truncation_side": "right"}), [1, 1, 4]),
        (json!({"truncation_side": "left"}), [4, 0, 0]),
    ] {
        let folder = folder_of(&[("tokenizer.json", other.clone()), ("tokenizer_config.json", config)]);
        let tokenizer = Tokenizer::read(&Documents::new(folder.path())).expect("valid").expect("there is one");
        assert_eq!(tokenizer.encode_within(text, 3).expect("encoded"), expected);
        assert_eq!(tokenizer.encode(text, true).expect("encoded").len(), 5, "neither cut nor padded");
    }
    let folder =
        folder_of(&[("tokenizer.json", json.clone()), ("tokenizer_config.json", json!({"truncation_side": "up"}))]);
    let line = Tokenizer::read(&Documents::new(folder.path())).expect_err("no side").one_line();
    assert!(line.contains("`truncation_side` must be right or left"), "{line}");
}

#[test]
fn tokenizers_as_they_are_published_are_taken() {
    let steps = |name: &str, steps: Vec<Value>| json!({"type": "Sequence", name: steps});
    // The longest that NFKC has, for U+FDFA, and the steps of XLM-RoBERTa and its like.
    let map = charsmap(&[b'a'; 33]);
    let blanks = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"});
    let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let words = steps("pretokenizers", vec![json!({"type": "WhitespaceSplit"}), metaspace]);
    with(&[("normalizer", steps("normalizers", vec![map, strip, blanks])), ("pre_tokenizer", words)]).expect("taken");
    // Llama 2's.
    let prefix = json!({"type": "Prepend", "prepend": "▁"});
    let decoders = vec![
        replace("▁", " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
        json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
    ];
    let llama = [
        ("normalizer", steps("normalizers", vec![prefix, replace(" ", "▁")])),
        ("decoder", steps("decoders", decoders)),
        ("post_processor", template(1, 1, 1)),
    ];
    let llama = with(&llama).expect("taken");
    assert_eq!(llama.encode("aa", true).expect("encoded")[..2], [0, 1]);
    // A model of speech's.
    let speech = with(&[("added_tokens", added(66_000, |i| format!("<|s_{i}|>")))]).expect("taken");
    assert_eq!(speech.encode("<|s_65999|>", true).expect("encoded"), [66_001]);
    let gpt = json!({"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]});
    assert_eq!(with(&[("model", gpt)]).expect("taken").encode("ab", true).expect("encoded"), [2]);
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["?", 0], ["a", -1.5]], "byte_fallback": false});
    assert_eq!(with(&[("model", unigram)]).expect("taken").encode("a", true).expect("encoded"), [1]);
}

#[test]
fn models_are_those_that_the_crate_reads() {
    let ids = json!({"?": 0, "a": 1, "b": 2, "ab": 3, "\n": 7, "##b": 4, "b</w>": 6, "\"é": 5});
    let bpe = |merges: Value| json!({"type": "BPE", "vocab": ids, "merges": merges});
    let mut all = bpe(json!([["a", "##b"]]));
    for (name, value) in [
        ("dropout", json!(0.5)),
        ("unk_token", json!("?")),
        ("continuing_subword_prefix", json!("##")),
        ("end_of_word_suffix", json!("</w>")),
        ("fuse_unk", json!(true)),
        ("byte_fallback", json!(true)),
        ("ignore_merges", json!(true)),
    ] {
        all[name] = value;
    }
    let word_piece = json!({"type": "WordPiece", "unk_token": "?", "continuing_subword_prefix": "##",
                            "max_input_chars_per_word": 99, "vocab": ids});
    let pieces = json!([["a", -1], ["?", 0.25], ["\n", -1e3]]);
    let models = [
        bpe(json!([])),
        bpe(json!(["#version: 0.2", "a b"])),
        bpe(json!([["a", "b"], ["a", "b"]])),
        all,
        word_piece,
        json!({"type": "WordLevel", "unk_token": "x", "vocab": ids}),
        json!({"type": "Unigram", "unk_id": 1, "vocab": pieces, "byte_fallback": true}),
        json!({"type": "Unigram", "unk_id": null, "vocab": pieces, "byte_fallback": true}),
        json!({"type": "Unigram", "unk_id": null, "vocab": [], "byte_fallback": true}),
    ];
    for mut model in models {
        let added = added(1, |_| "a".to_owned());
        with(&[("model", model.clone()), ("added_tokens", added)]).expect("taken");
        // Without a type, as in files of 2020, and in another order.
        let fields = model.as_object_mut().expect("an object");
        fields.remove("type");
        let fields: Map<String, Value> = fields.clone().into_iter().rev().collect();
        with(&[("model", fields.into())]).expect("taken");
    }
}

#[test]
fn models_that_contradict_themselves_are_refused() {
    let ids = json!({"?": 0, "a": 1, "b": 2, "ab": 3});
    let bpe = |merges: Value| json!({"type": "BPE", "vocab": ids, "merges": merges});
    let prefixed = json!({"type": "BPE", "vocab": ids, "merges": [["a", "b"]], "continuing_subword_prefix": "é"});
    let unigram = |unknown: i64| json!({"type": "Unigram", "unk_id": unknown, "vocab": [["?", 0]]});
    let word_piece = json!({"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                            "max_input_chars_per_word": 99, "vocab": ids});
    for (model, words) in [
        (bpe(json!([["a", "b"], ["x", "b"]])), r#""x", which is not"#),
        (bpe(json!([["a", "x"]])), r#""x", which is not"#),
        (bpe(json!(["a b", "b a"])), r#""ba", which is not"#),
        (bpe(json!([["a", "b"], "a b"])), "all pairs"),
        (bpe(json!(["a"])), "halves"),
        (bpe(json!(["a b c"])), "halves"),
        (bpe(json!([["a"]])), "two halves"),
        (bpe(json!([["a", "b", "c"]])), "two halves"),
        (prefixed, "shorter"),
        (json!({"type": "BPE", "vocab": ids}), "Missing vocab/merges"),
        (json!({"type": "BPE", "merges": []}), "Missing vocab/merges"),
        (json!({"type": "BPE", "vocab": [["a", 0]], "merges": []}), "expected a map"),
        (json!({"type": "BPE", "vocab": ids, "merges": [], "dropout": 2}), "Dropout"),
        (json!({"type": "BPE", "vocab": ids, "merges": [], "fuse_unk": 2}), "boolean"),
        (json!({"type": "Unigram", "unk_id": 0, "vocab": {"a": 0}}), "expected a sequence"),
        (unigram(1), "UnkIdNotInVocabulary"),
        (json!({"type": "Unigram", "unk_id": null, "vocab": [["?", 0]]}), "no unk_id and no byte_fallback"),
        (json!({"type": "Unigram", "vocab": [["?", 0]], "byte_fallback": false}), "no unk_id and no byte_fallback"),
        (unigram(-1), "expected usize"),
        (json!({"type": "Unigram", "unk_id": 0, "vocab": []}), "EmptyVocabulary"),
        (word_piece, r#""[UNK]" is not in its vocabulary"#),
        (json!({"type": "WordLevel", "vocab": ids}), "unk_token"),
        (json!({"type": "Other", "vocab": ids}), "did not match"),
    ] {
        let line = with(&[("model", model.clone())]).expect_err("refused").one_line();
        assert!(line.starts_with("tokenizer.json is not a valid tokenizer: "), "{line}");
        assert!(line.contains(words), "{model}: {line}");
    }
    let whole = json!({"version": "1.0", "model": bpe(json!([]))}).to_string();
    Tokenizer::from_bytes(whole.as_bytes()).expect("no field needs to be there but the model");
    for (what, with, words) in [
        (r#""version""#, r#""version":"1.0","version""#, "two version"),
        (r#""model""#, r#""model":{"vocab":{},"merges":[]},"model""#, "two model"),
        (r#""vocab""#, r#""vocab":{},"vocab""#, "two vocab"),
        (r#""merges""#, r#""merges":[],"merges""#, "two merges"),
        (r#""type""#, r#""type":"BPE","type""#, "two type"),
        (r#""model""#, r#""decoder":{"type":"Fuse","type":"Fuse"},"model""#, "two type"),
        (r#""model""#, r#""models""#, "`model`"),
    ] {
        let line = Tokenizer::from_bytes(whole.replacen(what, with, 1).as_bytes()).expect_err("refused").one_line();
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn regular_expressions_that_take_long_to_compile_are_refused() {
    let split =
        |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let steps = |regex: &str, times| json!({"type": "Sequence", "pretokenizers": vec![split(regex); times]});
    // Llama 3's, GPT-4o's and DeepSeek's.
    for regex in [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+(?!\S)|\s+",
        r"[一-龥\x{3040}-ゟ゠-ヿ]+",
    ] {
        with(&[("pre_tokenizer", steps(regex, 10))]).expect("taken");
    }
    for (regex, times) in [
        (r"\w{60}", 100),
        (r"(?=\w\w)\w|".repeat(300).as_str(), 2),
        (r"((\w{1,20}){1,20}){1,20}", 1),
        (r"(?>(x|[a-z])(?=\d{1100,}|.))", 1),
        (&"x".repeat(4000), 100),
    ] {
        let line = with(&[("pre_tokenizer", steps(regex, times))]).expect_err("refused").one_line();
        assert!(line.contains("regular expressions"), "{regex}: {line}");
    }
}

/// Unigram as XLM-RoBERTa has it, and BPE over the whole text as Gemma has it, in which blanks have tokens of their own.
fn more_tokenizers() -> [Tokenizer; 4] {
    let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let vocab = json!([
        ["?", 0],
        ["▁", -2.0],
        ["a", -3.0],
        ["b", -3.5],
        ["ab", -4.0],
        ["▁a", -4.2],
        ["aba", -5.0],
        ["é", -6.0],
        ["▁ab", -4.9],
        ["abab", -6.5]
    ]);
    let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false});
    let mut vocab = Map::new();
    for token in ["?", "▁", "a", "b", "é", "▁▁", "▁▁▁▁", "ab", "aa", "abab", "▁a", "▁ab", "ba", "ababab"]
    {
        vocab.insert(token.to_owned(), json!(vocab.len()));
    }
    let merges = ["▁ ▁", "▁▁ ▁▁", "a b", "ab ab", "▁ a", "▁ ab", "a a", "b a", "ab abab"];
    let bpe = json!({"type": "BPE", "unk_token": "?", "fuse_unk": true, "vocab": vocab, "merges": merges});
    let blank = ("normalizer", replace(" ", "▁"));
    // The tokens of a row of one letter are those of its end, from two or three of them on.
    let in_rows_of = |row: &str| {
        let vocab = json!([["?", 0], ["a", -8.0], [row, -1.0], ["b", -2.0], [" ", -2.0]]);
        with(&[("model", json!({"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": false}))])
    };
    let split = with(&[("model", unigram), ("pre_tokenizer", metaspace)]);
    [split, with(&[("model", bpe), blank]), in_rows_of("aa"), in_rows_of("aaa")]
        .map(|tokenizer| tokenizer.expect("a valid tokenizer"))
}

fn all_tokenizers() -> &'static [Tokenizer] {
    static ALL: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    let fixture = |name: &str| {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name);
        Tokenizer::read(&Documents::new(folder)).expect("it is read").expect("there is one")
    };
    let names =
        ["bert_hd20_f32_wordpiece", "llama3_rope_gqa3_hd20_bf16_tied_bpe", "qwen3_embedding_no_prefix_gqa3_hd20_bf16"];
    ALL.get_or_init(|| {
        [byte_level(), sentencepiece()].into_iter().chain(more_tokenizers()).chain(names.map(fixture)).collect()
    })
}

/// What [`Tokenizer::encode_within`] is for a text of which nothing is left out before it is tokenized.
fn whole_then_cut(tokenizer: &Tokenizer, text: &str, max_tokens: usize) -> Option<Vec<u32>> {
    let [bare, whole] = [false, true].map(|special| tokenizer.encode(text, special).expect("encoded"));
    let at = whole.windows(bare.len().max(1)).position(|ids| ids == bare).unwrap_or(0);
    let kept = bare.len().min(max_tokens.checked_sub(whole.len() - bare.len())?);
    Some([&whole[..at], &bare[..kept], &whole[at + bare.len()..]].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn a_text_is_cut_before_it_is_tokenized_and_its_tokens_are_the_same(
        pieces in vec((prop_oneof![
            4 => "[ab]{1,9} ?", 1 => "a{1,300}", 2 => "(the|license|of|work|hello|world)[ ,.]", 1 => " {1,40}", 1 => "[\\n\\t\\r ]{1,9}",
            1 => "[0-9]{1,12}", 1 => "[!-/]{1,7}", 1 => "\\PC{1,20}", 1 => "[é漢🦀\u{301}\u{fdfa}]{1,9}",
            1 => "(\\[MASK\\]|<\\|user\\|>|</s>|<s>)",
        ], 1usize..20), 1..40),
        max_tokens in 2usize..40,
    ) {
        let text: String = pieces.iter().map(|(piece, times)| piece.repeat(*times)).collect();
        for (i, tokenizer) in all_tokenizers().iter().enumerate() {
            let expected = whole_then_cut(tokenizer, &text, max_tokens).expect("room for the special tokens");
            prop_assert_eq!(tokenizer.encode_within(&text, max_tokens).expect("encoded"), expected, "tokenizer {}", i);
            for special in [false, true] {
                let whole = tokenizer.encode(&text, special).expect("encoded");
                let fitting = Some(whole).filter(|ids| ids.len() <= max_tokens);
                prop_assert_eq!(tokenizer.encode_fitting(&text, special, max_tokens).expect("encoded"), fitting);
            }
        }
    }
}

#[test]
fn long_texts_of_few_tokens_are_whole() {
    let bert = &all_tokenizers()[6];
    let [begin, license, unknown, end] =
        ["[CLS]", "license", "[UNK]", "[SEP]"].map(|token| bert.token_to_id(token).expect("a token"));
    // Blanks are no token, and a long word is one, however it goes on.
    let blanks = format!("{}license", " ".repeat(100_000));
    assert_eq!(bert.encode_within(&blanks, 5).expect("encoded"), [begin, license, end]);
    let word = format!("{} license", "x".repeat(100_000));
    assert_eq!(bert.encode_within(&word, 5).expect("encoded"), [begin, unknown, license, end]);
    assert_eq!(bert.encode_fitting(&word, true, 4).expect("encoded").expect("it fits").len(), 4);
    assert_eq!(bert.encode_fitting(&word, true, 3).expect("encoded"), None);
}

#[test]
fn no_more_of_a_long_text_is_tokenized_than_counts() {
    let text = "a b ".repeat(1 << 20);
    for (i, tokenizer) in all_tokenizers().iter().enumerate() {
        let beginning = tokenizer.beginning(&text, 50, Encoding::len).expect("encoded");
        assert!((50..2000).contains(&beginning.len()), "tokenizer {i}: {} tokens", beginning.len());
        // Some take a text for one word.
        let settled = tokenizer.beginning(&text, 50, settled).expect("encoded").len();
        let one_word = [0, 1, 3, 4, 5].contains(&i);
        assert_eq!(settled < 2000, !one_word, "tokenizer {i}: {settled} tokens");
    }
    assert_eq!(cut("word word", 7), "word");
    assert_eq!(cut("word wordword", 12), "word wordwor");
    assert_eq!(cut("word            word", 18), "word           ");
    assert_eq!(cut("é", 1), "");
}

#[test]
fn changed_bytes_in_a_tokenizer_cause_no_panic() {
    let json = br#"{"version":"1.0","truncation":{"direction":"Right","max_length":4,"strategy":"LongestFirst","stride":0},"padding":null,"added_tokens":[{"id":3,"content":"[S]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":{"type":"BertProcessing","sep":["[S]",3],"cls":["[S]",3]},"decoder":{"type":"WordPiece","prefix":"\#\#","cleanup":true},"model":{"type":"WordPiece","unk_token":"[U]","continuing_subword_prefix":"\#\#","max_input_chars_per_word":100,"vocab":{"[U]":0,"a":1,"\#\#b":2,"[S]":3}}}"#;
    let json: Vec<u8> = String::from_utf8_lossy(json).replace("\\#", "#").into_bytes();
    assert!(Tokenizer::from_bytes(&json).is_ok());
    for at in 0..json.len() {
        for byte in [b'0', b'9', b'"', b'z', b'-', 0xff] {
            let mut changed = json.clone();
            changed[at] = byte;
            if let Ok(tokenizer) = Tokenizer::from_bytes(&changed) {
                let _ = tokenizer.encode_within("ab zz é", 5);
                let _ = tokenizer.decode(&[0, 1, 2, 3, 9, u32::MAX], false);
            }
        }
    }
}

#[test]
fn limits_come_from_both_files_and_the_model() {
    let folder = folder_of(&[
        ("tokenizer_config.json", json!({"model_max_length": 512})),
        ("sentence_bert_config.json", json!({"max_seq_length": 256})),
    ]);
    let limits = TextLimits::read(&Documents::new(folder.path())).expect("valid");
    assert_eq!((limits.model_max_length, limits.max_seq_length), (Some(512), Some(256)));
    assert_eq!((limits.limit(512), limits.limit(128)), (256, 128));

    // Models of other kinds have their own names for the file, of which the oldest counts.
    let named = |names: &[&str]| {
        let files: Vec<_> = names.iter().zip(1..).map(|(name, n)| (*name, json!({"max_seq_length": n}))).collect();
        TextLimits::read(&Documents::new(folder_of(&files).path())).expect("valid").max_seq_length
    };
    let [bert, roberta, xlm] =
        ["sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"];
    assert_eq!([named(&[xlm]), named(&[roberta]), named(&[roberta, bert])], [Some(1), Some(1), Some(2)]);

    let unlimited = folder_of(&[("tokenizer_config.json", json!({"model_max_length": 1e30}))]);
    let limits = TextLimits::read(&Documents::new(unlimited.path())).expect("valid");
    assert_eq!(limits.limit(512), 512);
    for infinite in ["Infinity", "1e400"] {
        fs::write(unlimited.path().join("tokenizer_config.json"), format!(r#"{{"model_max_length": {infinite}}}"#))
            .expect("written");
        let limits = TextLimits::read(&Documents::new(unlimited.path())).expect("valid");
        assert_eq!(limits, TextLimits::default(), "{infinite}");
    }
    let none = tempfile::tempdir().expect("a folder");
    assert_eq!(TextLimits::read(&Documents::new(none.path())).expect("valid"), TextLimits::default());
    for wrong in [json!(0), json!(-1), json!("512"), json!(1.5)] {
        let folder = folder_of(&[("tokenizer_config.json", json!({"model_max_length": wrong}))]);
        assert!(TextLimits::read(&Documents::new(folder.path())).is_err());
    }
}

/// The cases of `tests/fixtures/make_tokenizers.py`: folders, and what transformers makes of texts.
fn each_reference(check: impl Fn(&str, &Tokenizer, &Value)) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tokenizers.json");
    let all: Value = serde_json::from_str(&fs::read_to_string(path).expect("the fixture")).expect("JSON");
    let cases = all["cases"].as_array().expect("cases");
    assert!(cases.len() > 150, "{} cases", cases.len());
    for case in cases {
        let mut file = all["bases"][case["base"].as_str().expect("a base")].clone();
        for (name, part) in case["parts"].as_object().expect("parts") {
            file[name] = part.clone();
        }
        let others = case["files"].as_object().expect("files").iter();
        let files: Vec<_> =
            others.map(|(name, file)| (name.as_str(), file.clone())).chain([("tokenizer.json", file)]).collect();
        let read = Tokenizer::read(&Documents::new(folder_of(&files).path()));
        let name = format!("{} with {}", case["name"], case["parts"]);
        check(&name, &read.expect(&name).expect("there is one"), case);
    }
}

#[test]
fn ids_and_texts_are_those_of_transformers() {
    each_reference(|name, tokenizer, case| {
        for text in case["texts"].as_array().expect("texts") {
            let spelled = text["text"].as_str().expect("a text");
            let ids = tokenizer.encode(spelled, true).expect("encoded");
            assert_eq!(json!(ids), text["ids"], "{name}: {spelled:?}");
            assert_eq!(json!(tokenizer.encode(spelled, false).expect("encoded")), text["bare"], "{name}: {spelled:?}");
            for (skip, decoded) in [(true, &text["shown"]), (false, &text["whole"])] {
                assert_eq!(json!(tokenizer.decode(&ids, skip).expect("decoded")), *decoded, "{name}: {spelled:?}");
            }
        }
    });
}

#[test]
fn special_tokens_are_those_of_transformers() {
    each_reference(|name, tokenizer, case| {
        let special: Vec<u32> = (0..100).filter(|&id| tokenizer.is_special(id)).collect();
        assert_eq!(json!(special), case["special"], "{name}");
    });
}

#[test]
fn special_tokens_of_the_configs_are_bounded() {
    let file = of_bytes(json!(null), json!([]));
    let token = |i: usize| format!("{i}").repeat(340);
    let list: Vec<String> = (0..600).map(token).collect();
    let named: Map<String, Value> = (0..600).map(|i| (format!("t{i}_token"), json!(token(i)))).collect();
    for (config, words) in [
        (json!({"eos_token": "x".repeat(2000)}), "2000 bytes"),
        (json!({"additional_special_tokens": list}), "states"),
        (json!({"extra_special_tokens": vec!["x".repeat(2000)]}), "2000 bytes"),
        (Value::Object(named.clone()), "states"),
        (json!({"extra_special_tokens": named}), "states"),
        (json!({"additional_special_tokens": (0..200_000).collect::<Vec<_>>()}), "must be a string"),
        (json!({"additional_special_tokens": (0..200_000).map(|i| format!("{i}")).collect::<Vec<_>>()}), "131072"),
        (json!({"eos_token": 5}), "`eos_token` must be a string or a token's object, found 5"),
        (json!({"eos_token": {"content": "<x>"}}), "`eos_token` must be a string or a token's object with `__type`"),
        (
            json!({"eos_token": {"content": "<x>", "__type": "Other"}}),
            "`eos_token` must be a string or a token's object",
        ),
        (json!({"extra_special_tokens": [{"content": "<x>"}]}), "must be a string or a token's object with `__type`"),
        (json!({"eos_token": {"content": 5}}), "`eos_token` must be a string or a token's object"),
        (
            json!({"eos_token": {"__type": "AddedToken", "content": "<x>", "lstrip": 1}}),
            "`eos_token` must have true or false as lstrip",
        ),
        (json!({"extra_special_tokens": "<x>"}), "`extra_special_tokens` must be a list of tokens or an object"),
        (json!({"extra_special_tokens": {"a": []}}), "`a` must be a string"),
        (json!({"split_special_tokens": "yes"}), "`split_special_tokens` must be true or false"),
        (json!({"add_bos_token": "yes"}), "`add_bos_token` must be true or false"),
    ] {
        let line = read_beside(&file, config).expect_err(words).one_line();
        assert!(line.contains(words), "{words}: {line}");
    }
    let folder = folder_of(&[("tokenizer.json", file), ("special_tokens_map.json", json!({"eos_token": []}))]);
    let line = Tokenizer::read(&Documents::new(folder.path())).expect_err("a list").one_line();
    assert!(line.contains("special_tokens_map.json: `eos_token` must be a string"), "{line}");
}
