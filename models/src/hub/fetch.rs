//! Fetching from the hub.
//!
//! The addresses and the question what a revision holds are the `hf-hub` crate's. The files are transferred here: its
//! own downloads have no time limit, follow redirects for ever, show the token to every host on the way, and take what
//! a connection brought before it broke for the whole.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use ring::digest;
use serde::Deserialize;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode, header};

use super::{CONFIG, Hub, Id, Progress, Repository, SINGLE, Snapshot, is_hash, variables};
use crate::checkpoint::INDEX;
use crate::error::{Error, Result, one_line};
use crate::folder::FileName;

/// A host that does not answer is given up after this; a slow one is not, as long as it sends something.
const CONNECT: Duration = Duration::from_secs(20);
const SILENCE: Duration = Duration::from_secs(60);
/// Of what a revision holds. Repositories with tens of thousands of files exist.
const MAX_LISTING_BYTES: u64 = 16 << 20;
/// How often a file is asked for, while its connections break after some bytes.
const ATTEMPTS: usize = 5;

/// What the hub says of a revision.
#[derive(Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    /// Of files that are kept apart from git.
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: String,
}

/// A file to fetch: its name in the cache is that of its content. The hash of a file that is kept apart from git is the
/// SHA-256 of its bytes.
struct Blob<'a> {
    name: &'a str,
    hash: &'a str,
    size: u64,
}

impl Listing {
    fn blob(&self, name: &str) -> Result<Option<Blob<'_>>> {
        let Some(sibling) = self.siblings.iter().find(|sibling| sibling.rfilename == name) else {
            return Ok(None);
        };
        let hash = sibling.lfs.as_ref().map(|lfs| lfs.sha256.as_str()).or(sibling.blob_id.as_deref());
        match (hash.filter(|hash| is_hash(hash)), sibling.size) {
            (Some(hash), Some(size)) => Ok(Some(Blob { name: &sibling.rfilename, hash, size })),
            _ => Err(Error::Hub(format!("the hub does not say what size {name} has, or what its content's hash is"))),
        }
    }
}

impl Hub {
    /// Fetches what is missing of a revision. Its name in the cache comes last, so that a revision which has one is
    /// whole.
    pub(super) fn fetch(&self, id: &Id<'_>, repository: &Repository, progress: Progress<'_>) -> Result<PathBuf> {
        let model = id.model();
        let listing = self.list(id, &model)?;
        let mut transfer = Transfer {
            hub: self,
            // At the commit: the branch may move on between two files.
            api: self.api(&model, &listing.sha)?,
            agent: agent(),
            blobs: repository.folder.join("blobs"),
            snapshot: repository.snapshot(&listing.sha),
            progress,
        };
        if listing.blob(CONFIG)?.is_none() {
            return Err(Error::Hub(format!("{id} on the hub has no {CONFIG}")));
        }
        // Nothing but these and the weights is ever fetched: no pickles, no code.
        for name in FileName::ALL {
            transfer.file_if_there(&listing, name.as_str())?;
        }
        for name in transfer.snapshot.pooling_configs()? {
            transfer.file_if_there(&listing, &name)?;
        }
        if !transfer.snapshot.is_loadable() {
            transfer.weights(&listing, id)?;
        }
        if id.revision != listing.sha {
            let name = repository.folder.join("refs").join(id.revision);
            write_whole(&name, listing.sha.as_bytes()).map_err(|e| Error::io("write", &name, e))?;
        }
        Ok(transfer.snapshot.folder)
    }

    fn api(&self, model: &str, revision: &str) -> Result<ApiRepo> {
        // The transfers are ours, and so is the cache: this one is never written.
        let api = ApiBuilder::from_cache(Cache::new(PathBuf::new()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_user_agent("sinew", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|e: ApiError| Error::Hub(format!("cannot ask {}: {}", self.endpoint, one_line(&e))))?;
        Ok(api.repo(Repo::with_revision(model.to_owned(), RepoType::Model, revision.to_owned())))
    }

    fn list(&self, id: &Id<'_>, model: &str) -> Result<Listing> {
        let unanswered = |e: ureq::Error| {
            Error::Hub(format!("cannot ask {} for {id}, which is no folder here: {}", self.endpoint, one_line(&e)))
        };
        let request = self.api(model, id.revision)?.info_request().query("blobs", "true");
        let request = request.config().http_status_as_error(false).timeout_connect(Some(CONNECT));
        let mut response = request.timeout_per_read(Some(SILENCE)).build().call().map_err(unanswered)?;
        if response.status() != StatusCode::OK {
            return Err(self.refusal(id, &response));
        }
        let listing: Listing =
            response.body_mut().with_config().limit(MAX_LISTING_BYTES).read_json().map_err(unanswered)?;
        match is_hash(&listing.sha) {
            true => Ok(listing),
            false => Err(Error::Hub(format!("{} does not say which commit {id} is", self.endpoint))),
        }
    }

    /// What a status other than success means for the user.
    fn refusal<T>(&self, what: impl std::fmt::Display, response: &Response<T>) -> Error {
        let code = response.headers().get("x-error-code").and_then(|value| value.to_str().ok());
        let Self { endpoint, .. } = self;
        let token = variables::TOKEN[0];
        let status = response.status();
        Error::Hub(match (status, code) {
            (_, Some("RevisionNotFound")) => format!("{endpoint} has no such revision: {what}"),
            (StatusCode::NOT_FOUND, _) => format!("{endpoint} has no {what}, and there is no such folder here"),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, Some("GatedRepo")) => format!(
                "{what} is gated ({}): accept its terms on {endpoint} and set {token} to a token that may read it",
                status.as_u16()
            ),
            (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => format!(
                "{endpoint} does not show {what} ({}): there is none, nor such a folder here, or {token} must be set to a \
                 token that may read it",
                status.as_u16()
            ),
            _ => format!("{endpoint} answers {status} for {what}"),
        })
    }
}

fn agent() -> Agent {
    let config = Agent::config_builder().redirect_auth_headers(RedirectAuthHeaders::SameHost);
    // What is counted and resumed are the bytes of the file, not of a compressed form.
    let config = config.http_status_as_error(false).accept_encoding("identity");
    config.timeout_connect(Some(CONNECT)).timeout_per_read(Some(SILENCE)).build().into()
}

/// The files of one commit on their way into the cache.
struct Transfer<'a> {
    hub: &'a Hub,
    api: ApiRepo,
    agent: Agent,
    blobs: PathBuf,
    snapshot: Snapshot,
    progress: Progress<'a>,
}

impl Transfer<'_> {
    /// Brings a file into the snapshot, or notes that the commit has none.
    fn file_if_there(&mut self, listing: &Listing, name: &str) -> Result<()> {
        if let Some(blob) = listing.blob(name)? {
            return self.file(&blob);
        }
        let marker = self.snapshot.missing.join(name);
        make_parent(&marker)?;
        File::create(&marker).map(drop).map_err(|e| Error::io("create", &marker, e))
    }

    /// Brings all weights into the snapshot.
    fn weights(&mut self, listing: &Listing, id: &Id<'_>) -> Result<()> {
        if let Some(blob) = listing.blob(SINGLE)? {
            return self.file(&blob);
        }
        let Some(index) = listing.blob(INDEX)? else {
            return Err(Error::Hub(format!(
                "{id} on the hub has neither {SINGLE} nor {INDEX}; no other format is read"
            )));
        };
        self.file(&index)?;
        for shard in self.snapshot.shards()? {
            let Some(blob) = listing.blob(&shard)? else {
                return Err(Error::Hub(format!("{id} on the hub has no {shard}, which its {INDEX} names")));
            };
            self.file(&blob)?;
        }
        Ok(())
    }

    /// Brings a file into the snapshot, unless it is there.
    fn file(&mut self, blob: &Blob<'_>) -> Result<()> {
        let pointer = self.snapshot.folder.join(blob.name);
        if pointer.is_file() {
            return Ok(());
        }
        let path = self.blobs.join(blob.hash);
        if fs::metadata(&path).map_or(u64::MAX, |found| found.len()) != blob.size {
            make_parent(&path)?;
            self.blob(blob, &path)?;
        }
        make_parent(&pointer)?;
        // Whatever is there, be it a link that leads nowhere or another process's, is replaced at once; until then the link
        // is not among the files of the snapshot, which may be read already.
        let new = unfinished(&path);
        let linked = link(&path, &new, blob.name).and_then(|()| fs::rename(&new, &pointer));
        linked.map_err(|e| Error::io("create", &pointer, e))
    }

    /// Downloads a file, or the rest of it where an earlier attempt was cut.
    fn blob(&mut self, blob: &Blob<'_>, path: &Path) -> Result<()> {
        let part = path.with_extension("incomplete");
        let failed = |e: io::Error| Error::io("download to", &part, e);
        let file = File::options().read(true).append(true).create(true).open(&part).map_err(failed)?;
        // Of several processes that want it one works and the others wait.
        file.lock().map_err(failed)?;
        if fs::metadata(path).is_ok_and(|found| found.len() == blob.size) {
            // What was opened has its final name by now, or is empty and nobody's.
            let _ = fs::remove_file(&part);
            return Ok(());
        }
        let mut file = Growing::new(file, blob.size).map_err(failed)?;
        for attempt in 1.. {
            let before = file.len;
            if before == blob.size {
                break;
            }
            let broken = self.rest(blob, &mut file).map_err(|e| match e {
                Broken::Refused(error) => error,
                Broken::Disk(error) => failed(error),
            })?;
            let after = file.len;
            if after < blob.size && (attempt == ATTEMPTS || after <= before) {
                let why = broken.map_or_else(String::new, |e| format!(": {}", one_line(&e)));
                return Err(Error::Hub(format!(
                    "the download of {} ended after {after} of {} bytes{why}; the next run goes on from there",
                    blob.name, blob.size
                )));
            }
            if after > blob.size {
                file.restart().map_err(failed)?;
                return Err(Error::Hub(format!("more than the {} bytes of {} arrived", blob.size, blob.name)));
            }
        }
        let found = file.sha256();
        if blob.hash.len() == found.len() && !blob.hash.eq_ignore_ascii_case(&found) {
            file.restart().map_err(failed)?;
            return Err(Error::Hub(format!(
                "{} arrived with other bytes than the hub has: their SHA-256 is {found}, and not {}",
                blob.name, blob.hash
            )));
        }
        // On the disk before it has its name: a power cut must not leave a name without content.
        file.file.sync_all().map_err(failed)?;
        fs::rename(&part, path).map_err(|e| Error::io("create", path, e))
    }

    /// Appends what one connection brings; how it broke, if it did.
    fn rest(&mut self, blob: &Blob<'_>, file: &mut Growing) -> std::result::Result<Option<io::Error>, Broken> {
        let have = file.len;
        let url = self.api.url(blob.name);
        let mut request = self.agent.get(&url);
        if let Some(token) = &self.hub.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if have > 0 {
            request = request.header(header::RANGE, format!("bytes={have}-"));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(error) => return Ok(Some(io::Error::other(error))),
        };
        match response.status() {
            StatusCode::PARTIAL_CONTENT if starts_at(&response, have) => {}
            // The whole of it, asked or not.
            StatusCode::OK => file.restart().map_err(Broken::Disk)?,
            _ => return Err(Broken::Refused(self.hub.refusal(&url, &response))),
        }
        // One byte more tells a file that is too long.
        let mut body = response.into_body().into_reader().take(blob.size - file.len + 1);
        let mut buffer = vec![0; 1 << 16];
        loop {
            (self.progress)(blob.name, file.len, blob.size);
            match body.read(&mut buffer) {
                Ok(0) => return Ok(None),
                Ok(n) => file.append(&buffer[..n]).map_err(Broken::Disk)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Ok(Some(error)),
            }
        }
    }
}

/// A file on its way, and the hash of what is there of it.
struct Growing {
    file: File,
    len: u64,
    hash: digest::Context,
}

impl Growing {
    /// What an earlier attempt left of a file of `size` bytes; of more than that nothing can be its beginning.
    fn new(file: File, size: u64) -> io::Result<Self> {
        let mut growing = Self { file, len: 0, hash: digest::Context::new(&digest::SHA256) };
        if growing.file.metadata()?.len() > size {
            growing.restart()?;
        }
        let mut buffer = vec![0; 1 << 16];
        loop {
            match growing.file.read(&mut buffer) {
                Ok(0) => return Ok(growing),
                Ok(n) => growing.count(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn restart(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        (self.len, self.hash) = (0, digest::Context::new(&digest::SHA256));
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.count(bytes);
        Ok(())
    }

    fn count(&mut self, bytes: &[u8]) {
        self.len += bytes.len() as u64;
        self.hash.update(bytes);
    }

    /// The hash of what is there, in hexadecimal digits.
    fn sha256(&self) -> String {
        self.hash.clone().finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What no further attempt mends.
enum Broken {
    Refused(Error),
    Disk(io::Error),
}

fn starts_at<T>(response: &Response<T>, start: u64) -> bool {
    let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.and_then(|range| range.strip_prefix("bytes ")?.split_once('-')).is_some_and(|(at, _)| at.parse() == Ok(start))
}

fn make_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent).map_err(|e| Error::io("create", parent, e))
}

/// A relative link, as the whole cache may be moved.
#[cfg(unix)]
fn link(blob: &Path, pointer: &Path, name: &str) -> io::Result<()> {
    // Out of the folders in the name, of the commit, and of `snapshots`.
    let mut target: PathBuf = std::iter::repeat_n("..", 2 + name.matches('/').count()).collect();
    target.push("blobs");
    target.extend(blob.file_name());
    std::os::unix::fs::symlink(target, pointer)
}

/// Symbolic links need a right that users of other systems may not have.
#[cfg(not(unix))]
fn link(blob: &Path, pointer: &Path, _: &str) -> io::Result<()> {
    fs::hard_link(blob, pointer)
}

/// A name beside `path` that nobody else uses.
fn unfinished(path: &Path) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.{}.incomplete", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    name.into()
}

/// Readers see all of it or what was there before.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let part = unfinished(path);
    fs::write(&part, bytes)?;
    fs::rename(&part, path)
}
