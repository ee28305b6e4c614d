//! Fetching a revision from the hub: what it holds, and what of that comes into the cache.
//!
//! The addresses and the question what a revision holds are the `hf-hub` crate's.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;
use sinew_memory::Unfinished;
use ureq::http::{Response, StatusCode};

use super::download::{Blob, CONNECT, Download, SILENCE};
use super::{Hub, Id, MODULES, Progress, Repository, SINGLE, Snapshot, is_hash, variables};
use crate::contents;
use crate::documents::{ADDITIONAL_CHAT_TEMPLATES, FileName, TEMPLATE_SUFFIX};
use crate::error::{Error, Result, one_line};
use crate::tensors::{self, INDEX};

/// Of what a revision holds. Repositories with tens of thousands of files exist.
const MAX_LISTING_BYTES: u64 = 16 << 20;

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

impl Listing {
    /// Returns the end of a message that says what the revision has in place of a supported checkpoint.
    fn instead(&self) -> String {
        let names: Vec<&str> = self.siblings.iter().map(|sibling| sibling.rfilename.as_str()).collect();
        contents::instead_of_weights(&names).map_or_else(String::new, |instead| format!(", only {instead}"))
    }

    /// Returns the files directly in the folder of additional chat templates.
    fn additional_chat_templates(&self) -> impl Iterator<Item = &str> {
        let name_of = |path: &str| {
            let name = path.strip_prefix(ADDITIONAL_CHAT_TEMPLATES)?.strip_prefix('/')?;
            let plain = !name.contains(['/', '\\']) && name.len() > TEMPLATE_SUFFIX.len();
            (plain && name.ends_with(TEMPLATE_SUFFIX)).then_some(())
        };
        let paths = self.siblings.iter().map(|sibling| sibling.rfilename.as_str());
        paths.filter(move |path| name_of(path).is_some())
    }

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
        // At the commit: the branch may move on between two files.
        let api = self.api(&model, &listing.sha)?;
        let mut transfer = Transfer {
            download: Download::new(self, api, progress),
            blobs: repository.folder.join("blobs"),
            snapshot: repository.snapshot(&listing.sha),
        };
        if let Some(modules) = listing.blob(MODULES)? {
            transfer.file(&modules)?;
        }
        let config = transfer.snapshot.documents().name_of(FileName::Config)?;
        if listing.blob(&config)?.is_none() {
            return Err(Error::Hub(format!("{id} on the hub has no {config}{}", listing.instead())));
        }
        // Only these files and the weights are ever fetched: no pickles, no code.
        transfer.chat_templates(&listing)?;
        for name in transfer.snapshot.small_files()? {
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
    pub(super) fn refusal<T>(&self, what: impl std::fmt::Display, response: &Response<T>) -> Error {
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

/// The files of one commit on their way into the cache.
struct Transfer<'a> {
    download: Download<'a>,
    blobs: PathBuf,
    snapshot: Snapshot,
}

impl Transfer<'_> {
    /// Brings a file into the snapshot, or notes that the commit has none.
    fn file_if_there(&mut self, listing: &Listing, name: &str) -> Result<()> {
        if let Some(blob) = listing.blob(name)? {
            return self.file(&blob);
        }
        self.note_missing(name)
    }

    /// Brings the additional chat templates into the snapshot, or notes that the commit has none.
    fn chat_templates(&mut self, listing: &Listing) -> Result<()> {
        let names: Vec<&str> = listing.additional_chat_templates().collect();
        if names.is_empty() {
            return self.note_missing(ADDITIONAL_CHAT_TEMPLATES);
        }
        names.into_iter().try_for_each(|name| self.file_if_there(listing, name))
    }

    /// Notes that the commit has no file or folder of this name.
    fn note_missing(&self, name: &str) -> Result<()> {
        let marker = self.snapshot.missing.join(name);
        make_parent(&marker)?;
        File::create(&marker).map(drop).map_err(|e| Error::io("create", &marker, e))
    }

    /// Brings all weights into the snapshot.
    fn weights(&mut self, listing: &Listing, id: &Id<'_>) -> Result<()> {
        let folder = self.snapshot.documents().transformer()?;
        let inside = |name: &str| if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        if let Some(blob) = listing.blob(&inside(SINGLE))? {
            return self.file(&blob);
        }
        let Some(index) = listing.blob(&inside(INDEX))? else {
            let instead = listing.instead();
            return Err(Error::Hub(format!("{id} on the hub has neither {SINGLE} nor {INDEX}{instead}")));
        };
        self.file(&index)?;
        for shard in tensors::shards_of_index(&self.snapshot.documents().weights()?)? {
            let shard = inside(&shard);
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
            self.download.blob(blob, &path)?;
        }
        make_parent(&pointer)?;
        // Whatever is there, be it a link that leads nowhere or another process's, is replaced at once; until then the
        // link is not among the files of the snapshot, which may be read already.
        let linked = Unfinished::beside(&path, |new| link(&path, new, blob.name));
        let linked = linked.and_then(|(new, ())| new.complete(&pointer));
        linked.map_err(|e| Error::io("create", &pointer, e))
    }
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

/// Readers see all of it or what was there before.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let (unfinished, mut file) = Unfinished::beside(path, |new| File::create_new(new))?;
    file.write_all(bytes)?;
    unfinished.complete(path)
}
