//! Models by their id, from a hub on this machine that behaves as the real one does, and worse.
#![cfg(feature = "hub")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use sinew::models::{Conversation, Folder, Hub, Load, Tensors};

#[path = "common/command.rs"]
mod command;
#[path = "common/fixtures.rs"]
mod fixtures;

use command::{command, run};
use fixtures::fixture_path;

const SINGLE: &str = "llama3_rope_gqa3_hd20_bf16_tied_bpe";
const SHARDED: &str = "qwen2_gqa3_hd12_f16_untied_3shards";
const ENCODER: &str = "bert_hd20_f32_wordpiece";
const EMBEDDING: &str = "qwen3_embedding_no_prefix_gqa3_hd20_bf16";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_secret";

/// A request as it came.
#[derive(Debug, Clone)]
struct Request {
    target: String,
    headers: BTreeMap<String, String>,
}

/// How the hub behaves.
#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    seen: Vec<Request>,
    /// Answers with a file that are cut after half of what they say.
    cuts: usize,
    /// Whether the length is said: without one a cut looks like an end.
    silent: bool,
    /// Whether ranges are served, as the real hub does.
    whole_only: bool,
    /// Whether ranges are answered with as many bytes from the beginning.
    misplaced: bool,
    /// Asks for a token.
    gated: bool,
    /// Sends more than the listing says.
    too_long: bool,
    /// Sends other bytes than the listing has the hash of.
    swapped: bool,
    /// What every request takes, so that those of several clients meet.
    pause: Duration,
    /// The model has an owner by now: what is asked of it by its old name is redirected.
    moved: bool,
    /// What the listing says instead.
    listing: Option<Value>,
}

/// A hub, and a second host that its files are redirected to.
struct Server {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

fn sha256(bytes: &[u8]) -> String {
    digest(&SHA256, bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Server {
    fn of(fixture: &str) -> Self {
        let mut files = files_of(&fixture_path(fixture));
        // What nobody may fetch.
        for name in ["pytorch_model.bin", "modeling_own.py", "README.md", "../escape"] {
            files.insert(name.to_owned(), b"not to be fetched".to_vec());
        }
        let state = Arc::new(Mutex::new(State { files, ..State::default() }));
        let listen = |answer: fn(&Request, &mut State, u16) -> Answer, other: u16| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
            let port = listener.local_addr().expect("an address").port();
            let state = state.clone();
            std::thread::spawn(move || {
                for connection in listener.incoming().flatten() {
                    // A client that goes away is its own affair.
                    let _ = serve(connection, &state, |request, state| answer(request, state, other));
                }
            });
            port
        };
        let contents = listen(content, 0);
        let port = listen(hub, contents);
        Self { endpoint: format!("http://127.0.0.1:{port}"), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no request failed")
    }

    fn behaves(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
    }

    /// The targets asked for since the last call.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.state().seen).into_iter().map(|request| request.target).collect()
    }
}

struct Answer {
    status: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn refusal(status: &'static str, code: &str) -> Self {
        Self { status, headers: vec![("X-Error-Code", code.to_owned())], body: Vec::new() }
    }
}

fn serve(
    connection: TcpStream,
    state: &Mutex<State>,
    answer: impl Fn(&Request, &mut State) -> Answer,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(&connection).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let target = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let request = Request { target, headers };
    let mut state = state.lock().expect("no request failed");
    state.seen.push(request.clone());
    std::thread::sleep(state.pause);
    let Answer { status, headers, body } = answer(&request, &mut state);
    let mut head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    let is_file = status.starts_with("20") && !request.target.starts_with("/api/");
    if !(is_file && state.silent) {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    let cut = is_file && state.cuts > 0 && body.len() > 1;
    state.cuts -= usize::from(cut);
    let sent = if cut { body.len() / 2 } else { body.len() };
    let mut out = &connection;
    out.write_all(format!("{head}\r\n").as_bytes())?;
    out.write_all(&body[..sent])
}

/// The hub itself: listings, and files, of which large ones are elsewhere.
fn hub(request: &Request, state: &mut State, contents: u16) -> Answer {
    if state.gated && request.headers.get("authorization") != Some(&format!("Bearer {TOKEN}")) {
        return Answer::refusal("401 Unauthorized", "GatedRepo");
    }
    let known = ["/api/models/", "/"].iter().find_map(|start| {
        let rest = request.target.strip_prefix(start)?.strip_prefix("gpt2/")?;
        Some(format!("{start}owner/name/{rest}"))
    });
    let request = match known {
        Some(location) if state.moved => {
            let headers = vec![("Location", location)];
            return Answer { status: "307 Temporary Redirect", headers, body: Vec::new() };
        }
        Some(target) => &Request { target, headers: request.headers.clone() },
        None => request,
    };
    if let Some(revision) = request.target.strip_prefix("/api/models/owner/name/revision/") {
        let revision = revision.trim_end_matches("?blobs=true");
        if !["main", "v1.0", COMMIT].contains(&revision) {
            return Answer::refusal("404 Not Found", "RevisionNotFound");
        }
        let siblings: Vec<Value> = state
            .files
            .iter()
            .map(|(name, bytes)| match name.ends_with(".safetensors") {
                true => json!({"rfilename": name, "size": bytes.len(), "lfs": {"sha256": sha256(bytes)}}),
                false => json!({"rfilename": name, "size": bytes.len(), "blobId": &sha256(bytes)[..40]}),
            })
            .collect();
        let listing = state.listing.clone().unwrap_or_else(|| json!({"sha": COMMIT, "siblings": siblings}));
        return Answer { status: "200 OK", headers: Vec::new(), body: listing.to_string().into_bytes() };
    }
    match request.target.strip_prefix(&format!("/owner/name/resolve/{COMMIT}/")) {
        Some(name) if name.ends_with(".safetensors") => {
            let location = format!("http://localhost:{contents}/{name}");
            Answer { status: "302 Found", headers: vec![("Location", location)], body: Vec::new() }
        }
        Some(name) => file(name, request, state),
        None => Answer::refusal("404 Not Found", "RepoNotFound"),
    }
}

/// The host of large files, which is somebody else's.
fn content(request: &Request, state: &mut State, _: u16) -> Answer {
    assert!(!request.headers.contains_key("authorization"), "the token is the hub's alone");
    file(&request.target[1..], request, state)
}

fn file(name: &str, request: &Request, state: &mut State) -> Answer {
    let Some(bytes) = state.files.get(name) else { return Answer::refusal("404 Not Found", "EntryNotFound") };
    let start = request.headers.get("range").map(|range| {
        let start = range.strip_prefix("bytes=").and_then(|range| range.strip_suffix('-'));
        start.and_then(|start| start.parse::<usize>().ok()).expect("an open range")
    });
    let more: &[u8] = if state.too_long { b"more" } else { b"" };
    let bytes = &match state.swapped {
        true => bytes.iter().map(|byte| byte ^ 1).collect(),
        false => bytes.clone(),
    };
    match start {
        Some(start) if !state.whole_only => {
            assert!(start < bytes.len(), "nothing is left to ask for");
            let count = bytes.len() - start;
            let start = if state.misplaced { 0 } else { start };
            let range = format!("bytes {start}-{}/{}", start + count - 1, bytes.len());
            let body = [&bytes[start..start + count], more].concat();
            Answer { status: "206 Partial Content", headers: vec![("Content-Range", range)], body }
        }
        _ => Answer { status: "200 OK", headers: Vec::new(), body: [bytes, more].concat() },
    }
}

fn cache() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn hub_of(server: &Server, cache: &Path) -> Hub {
    let cache = Some(cache.to_owned());
    Hub { cache, endpoint: server.endpoint.clone(), token: Some(TOKEN.to_owned()), offline: false }
}

fn locate(hub: &Hub, id: &str) -> sinew::models::Result<PathBuf> {
    hub.locate(id, &mut |_, _, _| {})
}

fn refusal(hub: &Hub, id: &str, words: &[&str]) {
    let line = locate(hub, id).expect_err(id).one_line();
    for word in words {
        assert!(line.contains(word), "{id}: `{word}` is not in: {line}");
    }
    assert!(!line.contains(TOKEN), "{line}");
}

/// The files in a folder and in those inside it, by their names there.
fn files_of(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let name = entry.file_name().into_string().expect("the name is UTF-8");
        if entry.path().is_dir() {
            files.extend(files_of(&entry.path()).into_iter().map(|(file, bytes)| (format!("{name}/{file}"), bytes)));
        } else {
            files.insert(name, fs::read(entry.path()).expect("the file is readable"));
        }
    }
    files
}

/// Every file that the fixture has, but those that nobody reads, is what the folder has.
fn assert_same(folder: &Path, fixture: &str) {
    let mut expected = files_of(&fixture_path(fixture));
    expected.retain(|name, _| !name.starts_with("expected"));
    let found = files_of(folder);
    assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
    assert!(found == expected, "the contents differ");
}

/// Files of the cache that are no blob under its final name.
fn unfinished(cache: &Path) -> Vec<PathBuf> {
    let blobs = fs::read_dir(cache.join("models--owner--name/blobs")).into_iter().flatten().flatten();
    blobs.map(|entry| entry.path()).filter(|path| path.extension().is_some()).collect()
}

#[test]
fn a_model_is_fetched_once_and_only_what_is_read_of_it() {
    for fixture in [SINGLE, SHARDED, ENCODER, EMBEDDING] {
        let (server, cache) = (Server::of(fixture), cache());
        let hub = hub_of(&server, cache.path());
        let mut seen = BTreeMap::new();
        let folder = hub
            .locate("owner/name", &mut |file, done, total| {
                assert!(done <= total);
                seen.insert(file.to_owned(), (done, total));
            })
            .expect("fetched");
        assert!(seen.values().all(|(done, total)| done == total), "{seen:?}");
        assert_same(&folder, fixture);
        assert!(unfinished(cache.path()).is_empty());
        let asked = server.asked();
        assert!(!asked.iter().any(|target| target.contains(".bin") || target.contains(".py")), "{asked:?}");

        for load in [Load::Mmap, Load::Read] {
            let checkpoint = Tensors::open(&folder, load).expect("links into the cache are followed");
            assert!(checkpoint.num_bytes() > 0);
        }
        // By now nothing is asked: not for the branch, not for the commit, not offline.
        let offline = Hub { offline: true, ..hub.clone() };
        for (hub, id) in [(&hub, "owner/name"), (&hub, &format!("owner/name@{COMMIT}")), (&offline, "owner/name")] {
            assert_eq!(locate(hub, id).expect("cached"), folder);
        }
        assert_eq!(server.asked(), [""; 0]);
        // A tag of the same commit costs one question, and no file.
        assert_eq!(locate(&hub, "owner/name@v1.0").expect("fetched"), folder);
        assert_eq!(server.asked(), ["/api/models/owner/name/revision/v1.0?blobs=true"]);
    }
}

#[test]
fn every_file_that_is_read_is_fetched_wherever_it_is() {
    let (server, cache) = (Server::of(EMBEDDING), cache());
    server.behaves(|state| {
        let pooling = state.files.remove("1_Pooling/config.json").expect("the fixture has one");
        state.files.insert("pooling/config.json".to_owned(), pooling);
        let modules = String::from_utf8(state.files["modules.json"].clone()).expect("the file is UTF-8");
        state.files.insert("modules.json".to_owned(), modules.replace("1_Pooling", "pooling").into_bytes());
        let template = br#"{"chat_template": "{{ bos_token }}"}"#.to_vec();
        state.files.insert("tokenizer_config.json".to_owned(), template);
        state.files.insert("special_tokens_map.json".to_owned(), br#"{"bos_token": "<special>"}"#.to_vec());
    });
    let hub = hub_of(&server, cache.path());
    let fetched = Folder::new(locate(&hub, "owner/name").expect("fetched"));
    let (local, embedding) = (Folder::new(fixture_path(EMBEDDING)), fetched.embedding().expect("whole"));
    assert_eq!(embedding, local.embedding().expect("valid"));
    assert!(embedding.pooling.is_some() && !embedding.prompts.is_empty());
    let template = fetched.chat_template().expect("valid").expect("there is one");
    assert_eq!(template.render(&Conversation::default().with("user", "Hello")).expect("rendered"), "<special>");
    server.asked();
    locate(&hub, "owner/name").expect("cached");
    assert_eq!(server.asked(), [""; 0]);

    server.behaves(|state| {
        let outside = br#"[{"type": "Pooling", "path": "../out"}]"#.to_vec();
        state.files.insert("modules.json".to_owned(), outside);
    });
    let other = self::cache();
    refusal(&hub_of(&server, other.path()), "owner/name", &["outside the model's folder"]);
}

#[test]
fn additional_chat_templates_are_fetched() {
    let (server, cache) = (Server::of(SINGLE), cache());
    server.behaves(|state| {
        for (name, source) in [
            ("chat_template.jinja", "plain"),
            ("additional_chat_templates/tool_use.jinja", "tools"),
            ("additional_chat_templates/rag.jinja", "rag"),
            ("additional_chat_templates/notes.txt", "no template"),
            ("additional_chat_templates/deeper/x.jinja", "too deep"),
            ("other/y.jinja", "elsewhere"),
        ] {
            state.files.insert(name.to_owned(), source.as_bytes().to_vec());
        }
    });
    let hub = hub_of(&server, cache.path());
    let path = locate(&hub, "owner/name").expect("fetched");
    let folder = Folder::new(&path);
    let template = folder.chat_template().expect("valid").expect("there is one");
    let hello = Conversation::default().with("user", "Hello");
    assert_eq!(template.render(&hello).expect("rendered"), "plain");
    let with_tools = Conversation { tools: Some(Vec::new()), ..hello.clone() };
    assert_eq!(template.render(&with_tools).expect("rendered"), "tools");
    let rag = template.named("rag").expect("it was fetched");
    assert_eq!(rag.render(&hello).expect("rendered"), "rag");
    assert_eq!(fs::read_dir(path.join("additional_chat_templates")).expect("a folder").count(), 2);
    assert!(!path.join("other").exists());

    server.asked();
    locate(&hub, "owner/name").expect("cached");
    assert_eq!(server.asked(), [""; 0]);
    // A cache that another program filled may lack them.
    fs::remove_dir_all(path.join("additional_chat_templates")).expect("it was there");
    locate(&hub, "owner/name").expect("completed");
    assert!(path.join("additional_chat_templates/rag.jinja").exists());
}

/// As programs leave it that note nothing of files that they do not read.
#[test]
fn a_transformer_in_a_folder_of_its_own_is_fetched_from_there() {
    for (fixture, shards) in [(EMBEDDING, 0), (SHARDED, 3)] {
        let (server, cache) = (Server::of(fixture), cache());
        server.behaves(|state| {
            let modules = json!([
                { "type": "sentence_transformers.models.Transformer", "path": "0_Transformer" },
                { "type": "sentence_transformers.models.Pooling", "path": "1_Pooling" },
            ]);
            let of_all = ["modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"];
            let files = std::mem::take(&mut state.files).into_iter();
            state.files = files
                .map(|(name, bytes)| match of_all.contains(&&*name) || !name.contains(['.']) || name.contains("..") {
                    true => (name, bytes),
                    false => (format!("0_Transformer/{name}"), bytes),
                })
                .collect();
            state.files.insert("modules.json".to_owned(), modules.to_string().into_bytes());
            state.files.insert("1_Pooling/config.json".to_owned(), br#"{"pooling_mode": "lasttoken"}"#.to_vec());
        });
        let hub = hub_of(&server, cache.path());
        let path = locate(&hub, "owner/name").expect("fetched");
        let fetched = Folder::new(&path);
        let (local, inside) = (Folder::new(fixture_path(fixture)), path.join("0_Transformer"));
        assert_eq!(fetched.config().expect("whole"), local.config().expect("whole"));
        assert!(fetched.embedding().expect("whole").pooling.is_some());
        assert_eq!(fetched.tokenizer().expect("whole").is_some(), local.tokenizer().expect("whole").is_some());
        for load in [Load::Mmap, Load::Read] {
            let bytes =
                |folder: &Folder| folder.checkpoint(load).expect("links into the cache are followed").num_bytes();
            assert_eq!(bytes(&fetched), bytes(&local));
        }
        let names = files_of(&inside);
        assert_eq!(names.keys().filter(|name| name.contains("-of-")).count(), shards, "{:?}", names.keys());
        let asked = server.asked();
        assert!(!asked.iter().any(|target| target.contains(".bin") || target.contains(".py")), "{asked:?}");
        // Nothing is asked of what is there.
        for hub in [&hub, &Hub { offline: true, ..hub.clone() }] {
            assert_eq!(locate(hub, "owner/name").expect("cached"), path);
        }
        assert_eq!(server.asked(), [""; 0]);
    }
}

#[test]
fn a_revision_of_another_format_says_what_it_has() {
    for (files, words) in [
        (&["model-q4_0.gguf"][..], &["no config.json", "model-q4_0.gguf", "GGUF"][..]),
        (&["adapter_config.json", "adapter_model.safetensors"], &["no config.json", "a LoRA adapter"]),
        (&["config.json", "pytorch_model.bin"], &["neither model.safetensors", "pickles of PyTorch"]),
    ] {
        let (server, cache) = (Server::of(SINGLE), cache());
        server.behaves(|state| {
            let config = state.files["config.json"].clone();
            state.files = files.iter().map(|name| ((*name).to_owned(), config.clone())).collect();
        });
        refusal(&hub_of(&server, cache.path()), "owner/name", words);
    }
}

#[test]
fn a_cache_that_others_filled_is_used_and_completed_where_the_hub_answers() {
    for fixture in [SINGLE, SHARDED, EMBEDDING] {
        let (server, cache) = (Server::of(fixture), cache());
        let hub = hub_of(&server, cache.path());
        let folder = locate(&hub, "owner/name").expect("fetched");
        let repository = cache.path().join("models--owner--name");
        fs::remove_dir_all(repository.join(".no_exist")).expect("there are files that the model does not have");
        fs::remove_file(folder.join("generation_config.json"))
            .or_else(|_| fs::remove_file(folder.join("modules.json")))
            .expect("one of them is there");
        server.asked();
        let offline = Hub { offline: true, ..hub.clone() };
        assert_eq!(locate(&offline, "owner/name").expect("the weights are there"), folder);
        let deaf = Hub { endpoint: "http://127.0.0.1:9".to_owned(), ..hub.clone() };
        assert_eq!(locate(&deaf, "owner/name").expect("the weights are there"), folder);
        assert_eq!(server.asked(), [""; 0]);

        // Of the commit that is there, wherever the branch is by now; the weights are not touched.
        assert_eq!(locate(&hub, "owner/name").expect("completed"), folder);
        let asked = server.asked();
        assert_eq!(asked[0], format!("/api/models/owner/name/revision/{COMMIT}?blobs=true"));
        assert!(!asked.iter().any(|target| target.ends_with(".safetensors")), "{asked:?}");
        assert_same(&folder, fixture);
        assert_eq!(locate(&hub, "owner/name").expect("complete"), folder);
        assert_eq!(server.asked(), [""; 0]);
    }
}

#[test]
fn a_download_that_is_cut_goes_on_where_it_was() {
    for (silent, whole_only) in [(false, false), (true, false), (false, true)] {
        let (server, cache) = (Server::of(SINGLE), cache());
        let hub = hub_of(&server, cache.path());
        server.behaves(|state| (state.cuts, state.silent, state.whole_only) = (1, silent, whole_only));
        assert_same(&locate(&hub, "owner/name").expect("resumed"), SINGLE);
        let seen = server.state().seen.clone();
        assert!(seen.iter().any(|request| request.headers.contains_key("range")), "{silent} {whole_only}");
    }
}

#[test]
fn a_part_of_another_place_is_not_what_was_missing() {
    let (server, cache) = (Server::of(SINGLE), cache());
    let hub = hub_of(&server, cache.path());
    // The small files have no hash that would tell.
    server.state().files.remove("model.safetensors").expect("the fixture has one");
    server.behaves(|state| (state.cuts, state.misplaced) = (1, true));
    refusal(&hub, "owner/name", &["206"]);
    server.state().misplaced = false;
    refusal(&hub, "owner/name", &["neither model.safetensors"]);
}

#[test]
fn a_download_that_stays_cut_never_counts_as_complete() {
    let (server, cache) = (Server::of(SINGLE), cache());
    let hub = hub_of(&server, cache.path());
    for silent in [true, false] {
        server.behaves(|state| (state.cuts, state.silent) = (usize::MAX, silent));
        refusal(&hub, "owner/name", &["ended after", "goes on from there"]);
        let offline = Hub { offline: true, ..hub.clone() };
        refusal(&offline, "owner/name", &["offline"]);
        refusal(&offline, &format!("owner/name@{COMMIT}"), &["offline"]);
        assert_eq!(unfinished(cache.path()).len(), 1);
    }
    server.state().cuts = 0;
    assert_same(&locate(&hub, "owner/name").expect("resumed"), SINGLE);
    assert!(unfinished(cache.path()).is_empty());
}

#[test]
fn more_or_other_bytes_than_were_promised_are_refused() {
    let (server, cache) = (Server::of(SINGLE), cache());
    let hub = hub_of(&server, cache.path());
    server.state().too_long = true;
    refusal(&hub, "owner/name", &["more than the"]);
    server.state().too_long = false;
    // What an earlier program left there cannot be the beginning.
    for path in unfinished(cache.path()) {
        fs::write(path, vec![0; 1 << 20]).expect("written");
    }
    assert_same(&locate(&hub, "owner/name").expect("restarted"), SINGLE);
}

#[test]
fn bytes_of_another_hash_than_was_promised_are_refused() {
    let (server, cache) = (Server::of(SINGLE), cache());
    let hub = hub_of(&server, cache.path());
    // The small files, whose hashes are git's, are fetched beforehand.
    let weights = server.state().files.remove("model.safetensors").expect("the fixture has one");
    refusal(&hub, "owner/name", &["neither model.safetensors"]);
    server.state().files.insert("model.safetensors".to_owned(), weights.clone());
    let other: Vec<u8> = weights.iter().map(|byte| byte ^ 1).collect();
    for cuts in [0, 1] {
        server.behaves(|state| (state.swapped, state.cuts) = (true, cuts));
        refusal(&hub, "owner/name", &["model.safetensors", "SHA-256", &sha256(&other), &sha256(&weights)]);
        refusal(&Hub { offline: true, ..hub.clone() }, "owner/name", &["offline"]);
    }
    server.state().swapped = false;
    assert_same(&locate(&hub, "owner/name").expect("fetched anew"), SINGLE);

    // A beginning of other bytes, left by whom it may.
    let cache = self::cache();
    let blobs = cache.path().join("models--owner--name/blobs");
    fs::create_dir_all(&blobs).expect("created");
    fs::write(blobs.join(format!("{}.incomplete", sha256(&weights))), &other[..100]).expect("written");
    let hub = hub_of(&server, cache.path());
    refusal(&hub, "owner/name", &["model.safetensors", "SHA-256"]);
    assert_same(&locate(&hub, "owner/name").expect("fetched anew"), SINGLE);
    assert!(unfinished(cache.path()).is_empty());
}

/// Nothing is fetched twice, whoever asks first.
fn assert_fetched_once(server: &Server) {
    let mut asked = server.asked();
    asked.retain(|target| !target.starts_with("/api/"));
    let all = asked.len();
    asked.sort();
    asked.dedup();
    assert!(all > 2 && all == asked.len(), "{asked:?} and others again");
}

#[test]
fn threads_and_processes_that_want_one_model_at_once_fetch_it_once() {
    for fixture in [SINGLE, SHARDED] {
        let (server, cache) = (Server::of(fixture), cache());
        server.state().pause = Duration::from_millis(10);
        let hub = hub_of(&server, cache.path());
        std::thread::scope(|scope| {
            let threads = [(); 3].map(|()| {
                scope.spawn(|| {
                    let folder = locate(&hub, "owner/name").expect("fetched");
                    Tensors::open(&folder, Load::Mmap).expect("whole");
                    assert_same(&folder, fixture);
                })
            });
            threads.into_iter().for_each(|thread| thread.join().expect("it loads"));
        });
        assert_fetched_once(&server);
        assert!(unfinished(cache.path()).is_empty());

        let cache = self::cache();
        let processes = [(); 2].map(|()| {
            let mut command = command();
            command.env("HF_HOME", cache.path()).env("HF_ENDPOINT", &server.endpoint).env("HF_TOKEN", TOKEN);
            command.args(["generate", "--model", "owner/name", "--tokens", "1", "--max-new-tokens", "1"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts")
        });
        for process in processes {
            let output = process.wait_with_output().expect("the command ends");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        assert_fetched_once(&server);
        assert!(unfinished(&cache.path().join("hub")).is_empty());
    }
}

#[test]
fn a_model_without_an_owner_is_found_in_the_cache_and_on_the_hub() {
    for moved in [false, true] {
        let (server, cache) = (Server::of(SINGLE), cache());
        server.behaves(|state| (state.moved, state.gated) = (moved, true));
        let hub = hub_of(&server, cache.path());
        let offline = Hub { offline: true, ..hub.clone() };
        refusal(&offline, "gpt2", &["no folder gpt2", "gpt2@main is not complete in", "offline"]);
        assert_eq!(server.asked(), [""; 0]);
        let folder = locate(&hub, "gpt2").expect("fetched");
        assert!(folder.starts_with(cache.path().join("models--gpt2/snapshots")));
        assert_same(&folder, SINGLE);
        let asked = server.asked();
        assert_eq!(asked[0], "/api/models/gpt2/revision/main?blobs=true");
        assert!(asked.iter().any(|target| *target == format!("/gpt2/resolve/{COMMIT}/config.json")), "{asked:?}");
        assert_eq!(locate(&offline, "gpt2").expect("cached"), folder);
        assert_eq!(server.asked(), [""; 0]);
    }
    // A folder of the same name goes first.
    let (server, cache) = (Server::of(SINGLE), cache());
    locate(&hub_of(&server, cache.path()), "gpt2").expect("fetched");
    let place = tempfile::tempdir().expect("a folder");
    fs::create_dir(place.path().join("gpt2")).expect("created");
    let inspect = |place: &Path| {
        let mut command = command();
        command.current_dir(place).env("HF_HUB_CACHE", cache.path()).args(["inspect", "gpt2", "--offline"]);
        run(&mut command, "")
    };
    let output = inspect(place.path());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && stderr.contains("gpt2: has neither model.safetensors"), "{stderr}");
    assert!(inspect(cache.path()).status.success());
}

#[test]
fn what_the_hub_does_not_have_or_show_is_one_clear_error() {
    let (server, cache) = (Server::of(SINGLE), cache());
    let hub = hub_of(&server, cache.path());
    refusal(&hub, "owner/other", &["owner/other", "has no", "no such folder"]);
    refusal(&hub, "owner/name@nope", &["no such revision", "owner/name@nope"]);
    server.state().gated = true;
    let stranger = Hub { token: None, ..hub.clone() };
    refusal(&stranger, "owner/name", &["gated", "401", "HF_TOKEN"]);
    assert_same(&locate(&hub, "owner/name").expect("the token is shown"), SINGLE);
    // No token reached the other host, or a request there would have failed.
    assert!(server.state().seen.iter().any(|request| request.target == "/model.safetensors"));
    let deaf = Hub { endpoint: "http://127.0.0.1:9".to_owned(), ..hub.clone() };
    refusal(&deaf, "owner/another", &["cannot ask http://127.0.0.1:9"]);
    let nonsense = Hub { endpoint: "no address".to_owned(), ..hub };
    refusal(&nonsense, "owner/another", &["cannot ask no address"]);
}

#[test]
fn a_hub_that_lies_writes_nothing_outside_its_folder() {
    let listing = |sha: &str, hash: &str, name: &str| json!({"sha": sha, "siblings": [{"rfilename": name, "size": 2, "blobId": hash}]});
    let hash = sha256(b"x");
    for (listing, words) in [
        (listing("../../../out", &hash, "config.json"), &["which commit"][..]),
        (listing(COMMIT, "../../../out", "config.json"), &["does not say", "config.json"]),
        (listing(COMMIT, &hash, "../config.json"), &["no config.json"]),
        (json!({"sha": COMMIT, "siblings": [{"rfilename": "config.json"}]}), &["does not say"]),
        (json!({"siblings": []}), &["sha"]),
        (json!([]), &["cannot ask"]),
    ] {
        let (server, outer) = (Server::of(SINGLE), cache());
        let inner = outer.path().join("a/b/cache");
        let hub = hub_of(&server, &inner);
        server.state().listing = Some(listing);
        refusal(&hub, "owner/name", words);
        let beside = fs::read_dir(outer.path().join("a/b")).into_iter().flatten().flatten();
        assert!(beside.into_iter().all(|entry| entry.path() == inner));
    }
    let (server, cache) = (Server::of(SHARDED), cache());
    let index = json!({"weight_map": {"x": "../escape"}}).to_string().into_bytes();
    server.state().files.insert("model.safetensors.index.json".to_owned(), index);
    refusal(&hub_of(&server, cache.path()), "owner/name", &["outside the model's folder"]);
    server.state().files.retain(|name, _| !name.ends_with(".safetensors") && !name.ends_with(".index.json"));
    refusal(&hub_of(&server, cache.path()), "owner/name", &["neither model.safetensors"]);
}

/// The command with a hub.
fn sinew(server: &Server, cache: &Path, arguments: &[&str]) -> Output {
    run(command().env("HF_HOME", cache).env("HF_ENDPOINT", &server.endpoint).args(arguments), "")
}

#[test]
fn every_command_takes_an_id() {
    let (server, cache) = (Server::of(SINGLE), cache());
    let run = |arguments: &[&str]| sinew(&server, cache.path(), arguments);
    let generate = ["generate", "--model", "owner/name", "--prompt", "Hello", "--max-new-tokens", "2", "--json"];
    let refused = run(&[&generate[..], &["--offline"]].concat());
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && stderr.contains("offline") && stderr.lines().count() == 1, "{stderr}");
    assert_eq!(server.asked(), [""; 0]);
    let first = run(&generate);
    let stderr = String::from_utf8_lossy(&first.stderr);
    // No terminal, no bars.
    assert!(first.status.success() && stderr.is_empty(), "{stderr}");
    assert!(!server.asked().is_empty());
    for arguments in [&generate[..], &["inspect", "owner/name", "--offline"]] {
        let again = run(arguments);
        assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    }
    assert_eq!(server.asked(), [""; 0]);
    for id in ["owner/../name", "../owner/name", "owner/name@../../x"] {
        let refused = run(&["generate", "--model", id, "--tokens", "1"]);
        let stderr = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && stderr.contains("no id [owner/]name"), "{stderr}");
    }
}
