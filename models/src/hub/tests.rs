use std::fs;

use super::*;

#[test]
fn an_id_is_one_or_two_plain_names_and_a_revision() {
    let id = |text| Id::parse(text).map(|id| (id.owner, id.name, id.revision));
    assert_eq!(id("Qwen/Qwen2.5-0.5B"), Some((Some("Qwen"), "Qwen2.5-0.5B", "main")));
    assert_eq!(id("a_b/c@refs/pr/1"), Some((Some("a_b"), "c", "refs/pr/1")));
    assert_eq!(id("gpt2"), Some((None, "gpt2", "main")));
    assert_eq!(id("bert-base-uncased@v1"), Some((None, "bert-base-uncased", "v1")));
    for refused in [
        "",
        ".",
        "..",
        "~",
        "gpt2.",
        "g--pt2",
        "gpt2@",
        "/",
        "a/",
        "/a",
        "/a/b",
        "./a/b",
        "a/b/c",
        "../b",
        "a/..",
        "a/b..c",
        ".a/b",
        "a/b.",
        "-a/b",
        "a--b/c",
        "a/b@",
        "a/b@..",
        "a/b@../x",
        "a/b@x/../y",
        "a/b@/etc",
        "a/b@x//y",
        "a/b@x@y",
        "a\\b/c",
        "a/b\0",
        "a/b?c",
        "a/b#c",
        "a/b%2e",
        "ä/b",
        "a /b",
    ] {
        assert_eq!(id(refused), None, "{refused:?}");
    }
    assert_eq!(id(&format!("a/{}", "b".repeat(97))), None);
}

#[test]
fn the_environment_says_where_the_hub_is() {
    let hub = |variables: &[(&str, &str)]| {
        Hub::of(|name| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into()))
    };
    let cache = |variables: &[(&str, &str)]| hub(variables).cache.map(|path| path.display().to_string());
    assert_eq!(cache(&[]), None);
    assert_eq!(cache(&[("HOME", "/me")]).as_deref(), Some("/me/.cache/huggingface/hub"));
    assert_eq!(cache(&[("HOME", "/me"), ("XDG_CACHE_HOME", "/c")]).as_deref(), Some("/c/huggingface/hub"));
    assert_eq!(cache(&[("HOME", "/me"), ("HF_HOME", "/hf")]).as_deref(), Some("/hf/hub"));
    let both = [("HF_HOME", "/hf"), ("HUGGINGFACE_HUB_CACHE", "/old"), ("HF_HUB_CACHE", "/new")];
    assert_eq!(cache(&both).as_deref(), Some("/new"));
    assert_eq!(cache(&both[..2]).as_deref(), Some("/old"));
    for (value, offline) in [("1", true), ("ON", true), ("True", true), ("yes", true), ("0", false), ("", false)] {
        assert_eq!(hub(&[("HF_HUB_OFFLINE", value)]).offline, offline, "{value}");
    }
    assert!(hub(&[("TRANSFORMERS_OFFLINE", "1")]).offline);
    assert!(hub(&[("HF_HUB_OFFLINE", ""), ("TRANSFORMERS_OFFLINE", "1")]).offline);
    assert!(!hub(&[("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")]).offline);
    for (variable, value, expected) in [
        ("HF_HOME", "~/hf", "/me/hf/hub"),
        ("HF_HOME", "~", "/me/hub"),
        ("HF_HOME", "~you/hf", "~you/hf/hub"),
        ("HF_HOME", "/a/~/hf", "/a/~/hf/hub"),
        ("HF_HUB_CACHE", "~/models", "/me/models"),
        ("HUGGINGFACE_HUB_CACHE", "~/models", "/me/models"),
        ("XDG_CACHE_HOME", "~/c", "/me/c/huggingface/hub"),
    ] {
        assert_eq!(cache(&[("HOME", "/me"), (variable, value)]).as_deref(), Some(expected), "{variable}={value}");
    }
    assert_eq!(cache(&[("HF_HOME", "~/hf")]).as_deref(), Some("~/hf/hub"));
    assert_eq!(hub(&[]).endpoint, DEFAULT_ENDPOINT);
    assert_eq!(hub(&[("HF_ENDPOINT", "http://localhost:1/")]).endpoint, "http://localhost:1");

    let home = tempfile::tempdir().expect("a folder");
    fs::write(home.path().join("token"), "from a file\n").expect("written");
    let home = home.path().to_str().expect("the path is UTF-8");
    assert_eq!(hub(&[("HF_HOME", home)]).token.as_deref(), Some("from a file"));
    assert_eq!(hub(&[("HOME", home), ("HF_TOKEN_PATH", "~/token")]).token.as_deref(), Some("from a file"));
    let with_token = hub(&[("HF_HOME", home), ("HF_TOKEN", "secret")]);
    assert_eq!(with_token.token.as_deref(), Some("secret"));
    assert!(!format!("{with_token:?}").contains("secret"));
}

#[test]
fn without_a_cache_only_paths_are_found() {
    let hub = Hub { cache: None, endpoint: String::new(), token: None, offline: true };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("the path is UTF-8");
    assert_eq!(hub.locate(path, &mut |_, _, _| {}).expect("it is there"), folder.path());
    let line = hub.locate("owner/name", &mut |_, _, _| {}).expect_err("no cache").one_line();
    assert!(line.contains("HF_HOME"), "{line}");
    let line = hub.locate("../name", &mut |_, _, _| {}).expect_err("no id").one_line();
    assert!(line.contains("no id [owner/]name"), "{line}");
}

/// While a branch moves on, a reader of its name sees the old commit or the new one.
#[cfg(feature = "hub")]
#[test]
fn a_branch_is_never_half_a_commit() {
    let folder = tempfile::tempdir().expect("a folder");
    let repository = Repository { folder: folder.path().to_owned() };
    let path = folder.path().join("refs/main");
    let commits = ["a", "b"].map(|digit| digit.repeat(40));
    fetch::write_whole(&path, commits[0].as_bytes()).expect("written");
    std::thread::scope(|scope| {
        let writers = commits.each_ref().map(|commit| {
            let path = &path;
            scope.spawn(move || (0..500).for_each(|_| fetch::write_whole(path, commit.as_bytes()).expect("written")))
        });
        while !writers.iter().all(|writer| writer.is_finished()) {
            let commit = repository.commit("main");
            assert!(commit.as_ref().is_some_and(|commit| commits.contains(commit)), "{commit:?}");
        }
    });
    assert_eq!(fs::read_dir(folder.path().join("refs")).expect("a folder").count(), 1);
}
