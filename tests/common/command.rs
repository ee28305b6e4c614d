//! The command, run as a user runs it.
#![allow(dead_code, reason = "not every file of tests needs all of it")]

use std::io::Write;
use std::process::{Command, Output, Stdio};
#[cfg(target_os = "linux")]
use std::time::{Duration, Instant};

/// The command, without what the environment says of hubs and what was tuned on this machine. Vulkan drivers ask Wayland
/// for a display, which complains on standard error where there is no folder of the session.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sinew"));
    command.env("XDG_RUNTIME_DIR", std::env::temp_dir());
    // No settings of whoever runs the tests.
    command.env("XDG_CONFIG_HOME", "/nowhere");
    command.env("SINEW_TUNING", "off");
    for name in [
        "SINEW_SETTINGS",
        "HF_HOME",
        "HF_HUB_CACHE",
        "HUGGINGFACE_HUB_CACHE",
        "HF_ENDPOINT",
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
    ] {
        command.env_remove(name);
    }
    command
}

/// What the command does with an input. Its arguments are shown where the test fails.
pub fn run(command: &mut Command, input: &str) -> Output {
    println!("sinew {:?}", command.get_args());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the command starts");
    // What is refused at once does not read.
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("the command ends")
}

/// [`run`] of arguments alone.
pub fn sinew(arguments: &[&str]) -> Output {
    run(command().args(arguments), "")
}

/// What it prints, where it succeeds.
pub fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("the output is UTF-8")
}

/// The command failed with one line on standard error that holds every one of `words`.
pub fn refused(output: &Output, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "it succeeded");
    // Tensors that a model does not use are no error.
    let errors = stderr.lines().filter(|line| !line.starts_with("warning: "));
    assert_eq!(errors.count(), 1, "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "`{word}` is not in: {stderr}");
    }
    assert!(output.stdout.is_empty(), "it wrote to standard output");
}

/// Starts a command, sends SIGINT once it catches that and is at work, and gives what it printed and the time that it took
/// to end.
#[cfg(target_os = "linux")]
pub fn interrupted(command: &mut Command) -> (Output, Duration) {
    println!("sinew {:?}", command.get_args());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let catches = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("a mask of signals");
        u64::from_str_radix(caught.trim(), 16).expect("a mask in hexadecimal") & 0b10 != 0
    };
    while !catches(child.id()) {
        assert!(child.try_wait().expect("the child is ours").is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Into the work itself.
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    let kill = Command::new("sh").args(["-c", &format!("kill -INT {}", child.id())]).status();
    assert!(kill.expect("a shell").success(), "it ended by itself");
    (child.wait_with_output().expect("the command ends"), start.elapsed())
}
