//! Every binary says what it does where it is asked, and in one line what it lacks.

use std::process::{Command, Output, Stdio};

const BINARIES: [(&str, &str); 6] = [
    ("attention-rates", env!("CARGO_BIN_EXE_attention-rates")),
    ("choice", env!("CARGO_BIN_EXE_choice")),
    ("model-rates", env!("CARGO_BIN_EXE_model-rates")),
    ("product-rates", env!("CARGO_BIN_EXE_product-rates")),
    ("serving-rates", env!("CARGO_BIN_EXE_serving-rates")),
    ("tuned-rates", env!("CARGO_BIN_EXE_tuned-rates")),
];

fn run(path: &str, arguments: &[&str]) -> Output {
    Command::new(path).args(arguments).stdin(Stdio::null()).output().expect("the binary runs")
}

#[test]
fn help_is_printed_and_nothing_is_run() {
    for (name, path) in BINARIES {
        for arguments in [&["--help"][..], &["-h"], &["softmax", "--help"]] {
            let output = run(path, arguments);
            let text = String::from_utf8(output.stdout).expect("UTF-8");
            assert!(output.status.success() && output.stderr.is_empty(), "{name}: {text}");
            assert!(
                text.lines().any(|line| line.contains(name) && !line.contains('`')),
                "{name} shows no usage: {text}"
            );
            assert!(!text.contains("//!") && !text.contains("```"), "{name}: {text}");
        }
    }
}

#[test]
fn what_is_missing_or_unknown_is_said_in_one_line() {
    for (name, path) in BINARIES {
        let (arguments, word) = match name {
            "choice" => continue,
            "attention-rates" | "product-rates" => (&["--no-such-option"][..], "--no-such-option"),
            _ => (&["folder"][..], "FOLDER DTYPE"),
        };
        let output = run(path, arguments);
        let text = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{name}: {text}");
        assert!(text.starts_with("error: ") && text.contains(word) && !text.contains('"'), "{name}: {text}");
    }
}
