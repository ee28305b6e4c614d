use std::collections::BTreeSet;
use std::path::Path;

use super::*;
use crate::Error;

/// For each setting a value that is not its default.
fn other(name: &str) -> &'static str {
    match name {
        "device" => "cpu:0",
        "threads" | "max_sequences" => "3",
        "pin" | "zero_points" | "keep_head" | "hub_offline" => "true",
        "deterministic" | "tuning" => "false",
        "tuning_cache" => "/another/folder",
        "device_cache" => "/a/folder/of/devices",
        "kernel_cache" => "/a/folder/of/kernels",
        "simd" => "portable",
        "kernels" => "gemm_portable,another",
        "memory_limit" => "2147483648",
        "dtype" => "int4",
        "group_size" => "channel",
        "activations" => "int8",
        "load" => "mmap",
        "context" | "prefill_chunk" | "cache_tokens" | "swap_tokens" | "kv_recent" => "64",
        "block_size" => "8",
        "kv_dtype" => "fp8",
        "kv_old" => "int8",
        "hub_cache" => "/a/folder",
        "hub_endpoint" => "https://hub.example",
        "hub_token" => "secret",
        _ => panic!("no value for {name}: give one here"),
    }
}

/// All settings, each otherwise than by default.
fn others() -> Settings {
    let mut settings = Settings::default();
    for field in FIELDS {
        field.set(&mut settings, other(field.name)).unwrap_or_else(|problem| panic!("{}: {problem}", field.name));
    }
    settings
}

#[test]
fn files_are_read_as_loading_reads_them_by_itself() {
    assert_eq!(Settings::default().load, crate::Load::default());
}

#[test]
fn every_setting_has_names_of_its_own_and_says_what_it_means() {
    let (mut names, mut arguments) = (BTreeSet::new(), BTreeSet::new());
    for field in FIELDS {
        assert!(names.insert(field.name), "{}", field.name);
        assert!(field.argument.is_none_or(|argument| arguments.insert(argument)), "{}", field.name);
        assert!(field.doc().ends_with('.') && field.doc().len() > 20, "{}: {}", field.name, field.doc());
        assert_eq!(Field::named(field.name).map(|known| known.name), Some(field.name));
    }
    assert_eq!(FIELDS.iter().filter(|field| field.secret).map(|field| field.name).collect::<Vec<_>>(), ["hub_token"]);
}

#[test]
fn every_setting_is_read_as_it_is_shown() {
    for settings in [Settings::default(), others()] {
        let mut read = Settings::default();
        for field in FIELDS {
            field.set(&mut read, &field.show(&settings)).unwrap_or_else(|problem| panic!("{}: {problem}", field.name));
        }
        assert_eq!(read, settings);
    }
    for field in FIELDS {
        assert_ne!(field.show(&others()), field.show(&Settings::default()), "{}", field.name);
    }
}

#[test]
fn every_setting_but_secrets_survives_a_file() {
    let settings = others();
    let mut resolved = Resolved::new();
    resolved.add_toml(Path::new("a.toml"), &settings.to_toml()).expect("it is read");
    let expected = Settings { hub_token: None, ..settings };
    assert_eq!(resolved.settings(), &expected);
    assert!(!others().to_toml().contains("secret") && !format!("{:?}", others()).contains("secret"));
    // A text that looks like a number stays one.
    for text in ["007", "+5", "12", "true"] {
        let settings = Settings { hub_endpoint: Some(text.into()), ..Settings::default() };
        let mut resolved = Resolved::new();
        resolved.add_toml(Path::new("a.toml"), &settings.to_toml()).expect("it is read");
        assert_eq!(resolved.settings(), &settings);
    }
    // Defaults are comments.
    let mut usual = Resolved::new();
    usual.add_toml(Path::new("a.toml"), &Settings::default().to_toml()).expect("it is read");
    assert_eq!(usual.settings(), &Settings::default());
    assert!(FIELDS.iter().all(|field| usual.source(field.name) == &Source::Default));
}

#[test]
fn an_argument_goes_before_a_variable_before_a_file_before_the_default() {
    for field in FIELDS {
        let (name, value) = (field.name, other(field.name));
        let usual = field.show(&Settings::default());
        let shown = |resolved: &Resolved| (field.show(resolved.settings()), resolved.source(name).clone());
        let mut resolved = Resolved::new();
        assert_eq!(shown(&resolved), (usual.clone(), Source::Default));
        let text = format!("# a comment\n\n{name} = \"{value}\"\n");
        resolved.add_toml(Path::new("a.toml"), &text).expect("it is read");
        assert_eq!(shown(&resolved), (value.to_owned(), Source::File("a.toml".into(), 3)));
        if !usual.is_empty() {
            let variable = |asked: &str| (asked == field.variable()).then(|| usual.clone().into());
            resolved.add_environment(&variable).expect("it is read");
            assert_eq!(shown(&resolved), (usual, Source::Variable(field.variable())));
        }
        resolved.add_argument(name, value, "--it").expect("it is read");
        assert_eq!(shown(&resolved), (value.to_owned(), Source::Argument("--it".to_owned())));
        let empty = |asked: &str| (asked == field.variable()).then(Default::default);
        resolved.add_environment(&empty).expect("empty ones say nothing");
        assert_eq!(shown(&resolved).0, value);
    }
}

#[test]
fn what_is_wrong_is_named_with_its_place_and_what_would_work() {
    let file = |text: &str| Resolved::new().add_toml(Path::new("a.toml"), text).expect_err("refused").to_string();
    let unknown = file("threads = 2\n\nprefil_chunk = 3\n");
    assert!(unknown.starts_with("a.toml:3: ") && unknown.contains("the nearest are prefill_chunk"), "{unknown}");
    let value = file("kv_dtype = \"int9\"");
    assert!(value.starts_with("a.toml:1: kv_dtype: ") && value.contains("int8"), "{value}");
    assert!(file("threads = 0").contains("whole numbers from 1 on"));
    assert!(file("threads = 1.5").contains("whole number"));
    assert!(file("[threads]\nn = 1").contains("a value is"));
    for text in [
        "threads = [2]",
        "\ndevice = [\"cpu\"]",
        "pin = [true]",
        "kv_dtype = []",
        "kernels = [[\"gemm.cpu.portable\"]]",
    ] {
        let problem = file(text);
        let (line, name) = (1 + text.matches('\n').count(), text.trim().split(' ').next().expect("a name"));
        assert!(problem.starts_with(&format!("a.toml:{line}: {name}: ")), "{problem}");
    }
    assert!(file("threads = [2]").contains("expected one value (N), found a list"));
    assert!(file("a b").starts_with("a.toml:1: "));
    assert!(file("pin = true\npin = false").starts_with("a.toml:2: "));
    let variable = |asked: &str| (asked == "SINEW_SIMD").then(|| "avx3".into());
    let problem = Resolved::new().add_environment(&variable).expect_err("refused").to_string();
    assert!(problem.contains("SINEW_SIMD") && problem.contains("avx2"), "{problem}");
    let argument = Resolved::new().add_argument("thread", "1", "--set").expect_err("refused").to_string();
    assert!(argument.contains("--set") && argument.contains("threads"), "{argument}");
}

#[test]
fn a_variable_is_meant_to_be_another_where_it_is_a_slip_away() {
    let meant = |name: &str| meant_by(name);
    for field in FIELDS {
        let variable = field.variable();
        assert_eq!(meant(&variable), None);
        let (shorter, longer) = (&variable[..variable.len() - 1], format!("{variable}S"));
        assert!(meant(shorter).is_some() && meant(&longer).is_some(), "{variable}");
    }
    // Two letters that changed places.
    assert_eq!(meant("SINEW_THRAEDS").as_deref(), Some("SINEW_THREADS"));
    // What tests and benches of this repository read, and what is somebody else's.
    for name in [
        "BLESS",
        "CI_WORK",
        "DEPTH",
        "FUZZ",
        "FUZZ_FROM",
        "MINILM",
        "OPERATIONS",
        "REQUESTS",
        "REQUIRE_GXX",
        "REQUIRE_WGPU",
        "ROWS",
        "SETTINGS",
        "HOME",
        "LOG",
        "",
    ] {
        assert_eq!(meant(&format!("SINEW_{name}")), None, "{name}");
    }
    assert_eq!(meant("OTHER_THREAD"), None);
}

#[test]
fn whole_numbers_of_a_file_may_have_any_base() {
    for (text, threads) in [("0x1F", 31), ("0o17", 15), ("0b1_01", 5), ("1_000", 1000), ("+7", 7)] {
        let mut resolved = Resolved::new();
        resolved.add_toml(Path::new("a.toml"), &format!("threads = {text}\n")).expect(text);
        assert_eq!(resolved.settings().threads.map(NonZeroUsize::get), Some(threads), "{text}");
    }
    for text in ["0x0", "-0x1", "-3", "0xffff_ffff_ffff_ffff_f", "99999999999999999999999999999999999999999"] {
        let error = Resolved::new().add_toml(Path::new("a.toml"), &format!("threads = {text}")).expect_err(text);
        assert!(error.to_string().starts_with("a.toml:1: "), "{error}");
    }
}

#[test]
fn what_is_no_number_is_refused_in_words_of_our_own() {
    let file = |text: &str| Resolved::new().add_toml(Path::new("a.toml"), text).expect_err("refused").to_string();
    for value in ["-1", "true", "0", "\"many\""] {
        let problem = file(&format!("threads = {value}"));
        assert_eq!(problem, "a.toml:1: threads: supported are whole numbers from 1 on", "{value}");
    }
    assert_eq!(file("swap_tokens = -1"), "a.toml:1: swap_tokens: supported are whole numbers from 0 on");
    for name in ["threads", "swap_tokens"] {
        let problem = file(&format!("{name} = 18446744073709551616"));
        assert!(problem.starts_with(&format!("a.toml:1: {name}: it is too large")), "{problem}");
    }
}

#[test]
fn a_path_in_a_file_is_seen_from_the_files_folder_and_no_home_is_made_of_a_tilde() {
    let folders = ["tuning_cache", "device_cache", "kernel_cache", "hub_cache"];
    let show = |resolved: &Resolved, name: &str| Field::named(name).expect(name).show(resolved.settings());
    for name in folders {
        for (value, expected) in [("b", "/a/b"), ("./~", "/a/./~"), ("/b/c", "/b/c"), ("auto", "auto")] {
            let mut resolved = Resolved::new();
            resolved.add_toml(Path::new("/a/settings.toml"), &format!("{name} = \"{value}\"")).expect(value);
            assert_eq!(show(&resolved, name), expected);
        }
        for value in ["~", "~/b", "~someone/b"] {
            let file = Resolved::new().add_toml(Path::new("a.toml"), &format!("\n{name} = \"{value}\""));
            let argument = Resolved::new().add_argument(name, value, "--it");
            for (problem, place) in [(file, &*format!("a.toml:2: {name}: ")), (argument, "--it: ")] {
                let problem = problem.expect_err(value).to_string();
                assert!(problem.starts_with(place) && problem.contains("the whole path"), "{problem}");
            }
        }
    }
    // As shells see it, until it is written to a file, which may be anywhere.
    let mut resolved = Resolved::new();
    resolved.add_argument("tuning_cache", "b", "--it").expect("a path");
    assert_eq!(show(&resolved, "tuning_cache"), "b");
    let here = std::env::current_dir().expect("a folder").join("b");
    let mut again = Resolved::new();
    again.add_toml(Path::new("/a/settings.toml"), &resolved.settings().to_toml()).expect("what was written");
    assert_eq!(again.settings().tuning_cache, Some(here));
}

#[test]
fn names_that_there_are_not_are_refused_with_what_decided_them() {
    let refused = |variable: &str, value: &str| {
        let mut resolved = Resolved::new();
        resolved.add_environment(&|name| (name == variable).then(|| value.into())).expect("any text");
        resolved.check_names().expect_err("refused").to_string()
    };
    let device = refused("SINEW_DEVICE", "abacus");
    assert!(device.starts_with("SINEW_DEVICE: ") && device.contains("cuda:N"), "{device}");
    let kernel = refused("SINEW_KERNELS", "gemm.cpu.portable,gemm.abacus");
    assert!(kernel.starts_with("SINEW_KERNELS: ") && kernel.contains("`gemm.abacus`"), "{kernel}");
    for (name, value) in
        [("device", "cpu:0"), ("device", "cuda:7"), ("device", "wgpu"), ("kernels", "gemm.cpu.portable")]
    {
        let mut resolved = Resolved::new();
        resolved.add_argument(name, value, "--it").expect("any text");
        resolved.check_names().expect("a name, whether or not it is here");
    }
    for device in ["cpu:1", "cuda:x", "cuda:", ""] {
        assert!(sinew_memory::check_name(device).is_err(), "{device}");
    }
}

#[test]
fn a_file_is_that_which_is_named_or_the_users() {
    let folder = tempfile::tempdir().expect("a folder");
    let (home, named, chosen) = (folder.path().join("home"), folder.path().join("named"), folder.path().join("chosen"));
    std::fs::create_dir_all(home.join(".config/sinew")).expect("made");
    let user = home.join(".config/sinew/settings.toml");
    for (path, threads) in [(&user, 1), (&named, 2), (&chosen, 3)] {
        std::fs::write(path, format!("threads = {threads}")).expect("written");
    }
    let threads = |file: Option<&Path>, variables: &[(&str, &Path)]| {
        let find = |asked: &str| variables.iter().find(|(name, _)| *name == asked).map(|(_, path)| (*path).into());
        Resolved::of_user(file, &find).map(|resolved| resolved.settings().threads.map(NonZeroUsize::get))
    };
    let (home, config) = (("HOME", home.as_path()), home.join(".config"));
    assert_eq!(threads(None, &[]).expect("none"), None);
    assert_eq!(threads(None, &[home]).expect("read"), Some(1));
    assert_eq!(threads(None, &[("XDG_CONFIG_HOME", &config)]).expect("read"), Some(1));
    assert_eq!(threads(None, &[("HOME", folder.path())]).expect("there need be none"), None);
    assert_eq!(threads(None, &[home, (FILE_VARIABLE, &named)]).expect("read"), Some(2));
    assert_eq!(threads(Some(&chosen), &[home, (FILE_VARIABLE, &named)]).expect("read"), Some(3));
    let missing = threads(Some(Path::new("/nowhere/a.toml")), &[]).expect_err("named, and not there");
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
}

/// Settings that decide nothing here, with where they do: each has its test there.
const ELSEWHERE: [(&str, &str); 3] = [
    ("pin", "where threads are put, which tests of teams see"),
    ("kernels", "which kernels run, as the test below says"),
    ("tuning", "whether what was measured counts, which tests of `sinew tune` see"),
];

#[test]
fn every_setting_takes_effect() {
    let usual = Settings::default();
    let (load, serving, hub) =
        (usual.load_options().expect("valid"), usual.serving_options().expect("valid"), usual.hub());
    for field in FIELDS.iter().filter(|field| ELSEWHERE.iter().all(|(name, _)| *name != field.name)) {
        let mut settings = Settings::default();
        match field.name {
            // Of what is quantized.
            "group_size" | "zero_points" | "keep_head" => settings.dtype = WeightDType::parse("int4").expect("a dtype"),
            "kv_recent" => settings.kv_old = OldKvDType::parse("int8").expect("a dtype"),
            _ => {}
        }
        let before = settings.clone();
        field.set(&mut settings, other(field.name)).expect("a value");
        let changed = match field.name {
            "device" => {
                settings.device = "nothing".to_owned();
                settings.open_device().is_err()
            }
            "threads" => settings.open_device().expect("a CPU").hardware().threads == 3,
            "simd" => settings.open_device().expect("a CPU").hardware().simd == SimdLevel::Portable,
            "deterministic" => !settings.open_context().expect("a context").policy().deterministic,
            "tuning_cache" => settings.tuning_cache() != usual.tuning_cache(),
            "device_cache" => settings.device_cache() != usual.device_cache(),
            "kernel_cache" => settings.kernel_cache() != usual.kernel_cache(),
            "memory_limit" => settings.open_context().expect("a context").pool().config().limit_bytes == 2 << 30,
            "max_sequences" | "cache_tokens" | "swap_tokens" => settings.serving_options().expect("valid") != serving,
            "hub_cache" | "hub_endpoint" | "hub_token" | "hub_offline" => {
                settings.hub() != hub || std::env::var_os("HF_HUB_OFFLINE").is_some()
            }
            _ => {
                let options = settings.load_options().expect("valid");
                options != load && options != before.load_options().expect("valid")
            }
        };
        assert!(changed, "{} decides nothing", field.name);
    }
    let kernels = |names: &[&str]| {
        let kernels = names.iter().map(|name| (*name).to_owned()).collect();
        Settings { kernels, ..Settings::default() }.open_context().map(|ctx| ctx.policy().prefer.clone())
    };
    let unknown = kernels(&["no_such_kernel"]).expect_err("refused").to_string();
    assert!(unknown.contains("no_such_kernel") && unknown.contains("sinew explain"), "{unknown}");
    assert_eq!(kernels(&[]).expect("a context"), Vec::<String>::new());
}

#[test]
fn the_sizes_of_groups_are_those_in_which_kernels_keep_weights() {
    for size in sinew_ops::layers::GROUP_SIZES {
        assert_eq!(GroupSize::parse(&size.to_string()), Ok(GroupSize::Of(size)));
        let doc = Field::named("group_size").expect("a setting").doc();
        assert!(doc.contains(&size.to_string()), "{size}: {doc}");
    }
    for wrong in ["16", "032", "256", "", "all"] {
        assert_eq!(GroupSize::parse(wrong), Err("supported are auto, 32, 64, 128 and channel".to_owned()), "{wrong}");
    }
}
