use std::fs;

use serde_json::{Value, json};
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
                    "pad_type_id": 0, "pad_token": "!"},
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
    Tokenizer::from_bytes(json.to_string().as_bytes()).expect("a valid tokenizer")
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
    Tokenizer::from_bytes(json.to_string().as_bytes()).expect("a valid tokenizer")
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
    assert!(Tokenizer::read(&Folder::new(empty.path())).expect("none is no error").is_none());
    let wrong = folder_of(&[("tokenizer.json", json!([]))]);
    let line = Tokenizer::read(&Folder::new(wrong.path())).expect_err("damaged").one_line();
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

/// A tokenizer of single letters with another value for each of `fields`.
fn with(fields: &[(&str, Value)]) -> Result<Tokenizer> {
    let mut json = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "BPE", "unk_token": "?", "vocab": {"a": 0, "?": 1}, "merges": []},
    });
    for (name, value) in fields {
        json[*name] = value.clone();
    }
    Tokenizer::from_bytes(json.to_string().as_bytes())
}

fn added(count: usize, content: impl Fn(usize) -> String) -> Value {
    let token = |i| {
        json!({"id": i + 2, "content": content(i), "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": true, "special": false})
    };
    (0..count).map(token).collect()
}

#[test]
fn time_added() {
    for n in [1000, 6500, 10000, 20000, 40000, 66000, 120000] {
        let t = std::time::Instant::now();
        with(&[("added_tokens", added(n, |i| format!("<custom_token_{i}>")))]).expect("ok");
        eprintln!("{n}: {:?}", t.elapsed());
    }
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
    let limits = TextLimits::read(&Folder::new(folder.path())).expect("valid");
    assert_eq!((limits.model_max_length, limits.max_seq_length), (Some(512), Some(256)));
    assert_eq!((limits.limit(512), limits.limit(128)), (256, 128));

    let unlimited = folder_of(&[("tokenizer_config.json", json!({"model_max_length": 1e30}))]);
    let limits = TextLimits::read(&Folder::new(unlimited.path())).expect("valid");
    assert_eq!(limits.limit(512), 512);
    let none = tempfile::tempdir().expect("a folder");
    assert_eq!(TextLimits::read(&Folder::new(none.path())).expect("valid"), TextLimits::default());
    for wrong in [json!(0), json!(-1), json!("512"), json!(1.5)] {
        let folder = folder_of(&[("tokenizer_config.json", json!({"model_max_length": wrong}))]);
        assert!(TextLimits::read(&Folder::new(folder.path())).is_err());
    }
}
