//! Models by name: a folder, or an id of the Hugging Face Hub.
//!
//! What is fetched is kept in the hub's own cache, `models--{owner}--{name}/snapshots/{commit}`, which Python's
//! libraries share; the oldest models have no owner. A commit that is there with all its weights is used, whatever has
//! happened on the hub since; `@{commit}` asks for another one. Other programs read and keep fewer small files than are
//! read here: those are asked for once, and done without where the hub does not answer.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::documents::{ADDITIONAL_CHAT_TEMPLATES, Documents, FileName};
use crate::error::{Error, Result, one_line};
use crate::files;
use crate::modules::{self, MODULES};
use crate::tensors::{self, SINGLE};

#[cfg(feature = "hub")]
mod download;
#[cfg(feature = "hub")]
mod fetch;

/// The only small file that every model has.
const CONFIG: &str = FileName::Config.as_str();

/// Variables of the environment, by what they say; of several for one thing the first that is set counts. A folder may
/// begin with `~`, which is `HOME`.
pub mod variables {
    /// The folder of the cache.
    pub const CACHE: [&str; 2] = ["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"];
    /// The folder that has the cache, as `hub`, and the token.
    pub const HOME: &str = "HF_HOME";
    /// The address of the hub.
    pub const ENDPOINT: &str = "HF_ENDPOINT";
    /// What private and gated models are asked for with.
    pub const TOKEN: [&str; 2] = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
    /// The file that has the token where no variable has it.
    pub const TOKEN_PATH: &str = "HF_TOKEN_PATH";
    /// `1`, `on`, `true` or `yes`: nothing is fetched.
    pub const OFFLINE: [&str; 2] = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"];
}

/// The hub's address where no variable says another.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// How far a download has come: `(file, done, total)` in bytes.
pub type Progress<'a> = &'a mut dyn FnMut(&str, u64, u64);

/// The hub and its cache on this machine.
///
/// ```no_run
/// use sinew_models::{Hub, LanguageModel, LoadOptions};
///
/// let folder = Hub::from_env().locate("Qwen/Qwen2.5-0.5B-Instruct", &mut |_, _, _| {})?;
/// let model = LanguageModel::load(folder, &LoadOptions::default())?;
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Hub {
    /// The folder of the cache; without one only paths are found.
    pub cache: Option<PathBuf>,
    /// The address.
    pub endpoint: String,
    /// What private and gated models are asked for with. Only the endpoint's host gets to see it.
    pub token: Option<String>,
    /// Nothing is fetched.
    pub offline: bool,
}

/// Without the token, which is not for logs.
impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cache, endpoint, token, offline } = self;
        f.debug_struct("Hub")
            .field("cache", cache)
            .field("endpoint", endpoint)
            .field("token", &token.as_ref().map(|_| "…"))
            .field("offline", offline)
            .finish()
    }
}

impl Hub {
    /// The hub that the [`variables`] of the environment describe, as Python's `huggingface_hub` reads them.
    pub fn from_env() -> Self {
        Self::of(|name| env::var_os(name))
    }

    fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| {
            let path = PathBuf::from(variable(name)?);
            match (path.strip_prefix("~"), variable("HOME")) {
                (Ok(rest), Some(home)) => Some(PathBuf::from(home).join(rest)),
                _ => Some(path),
            }
        };
        let text = |name: &str| variable(name).and_then(|value| value.into_string().ok());
        let home = path(variables::HOME).or_else(|| {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?;
            Some(caches.join("huggingface"))
        });
        let cache = variables::CACHE.iter().find_map(|name| path(name));
        let token_path = path(variables::TOKEN_PATH).or_else(|| Some(home.as_ref()?.join("token")));
        let token = variables::TOKEN
            .iter()
            .find_map(|name| text(name))
            .or_else(|| crate::files::read_text(&token_path?).ok())
            .map(|token| token.trim().to_owned());
        let offline = variables::OFFLINE
            .iter()
            .find_map(|name| text(name))
            .is_some_and(|value| ["1", "on", "true", "yes"].contains(&value.to_ascii_lowercase().as_str()));
        let endpoint = text(variables::ENDPOINT).unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned());
        Self {
            cache: cache.or_else(|| Some(home?.join("hub"))),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.filter(|token| !token.is_empty()),
            offline,
        }
    }

    /// The folder of the model called `name`: `name` itself where there is such a folder or file, else that of the id
    /// `owner/name`, `name` or either with `@revision` in the cache, into which what is missing is fetched.
    ///
    /// # Errors
    ///
    /// [`Error::Hub`] for what is neither, for a model or revision that the hub does not have or does not show, for one
    /// that is not in the cache while [`offline`](Self::offline), and for a download that fails; [`Error::Io`] for a
    /// cache that cannot be written.
    pub fn locate(&self, name: &str, progress: Progress<'_>) -> Result<PathBuf> {
        let path = Path::new(name);
        if path.exists() {
            return Ok(path.to_owned());
        }
        let Some(id) = Id::parse(name) else {
            return Err(Error::Hub(format!(
                "`{name}` is no folder with config.json and safetensors files, and no id [owner/]name[@revision] of \
                 the hub"
            )));
        };
        let Some(cache) = &self.cache else {
            return Err(Error::Hub(format!(
                "no folder {name}, and no cache of the hub: neither HOME nor {} is set",
                variables::HOME
            )));
        };
        let repo = Repository { folder: cache.join(format!("models--{}", id.model().replace('/', "--"))) };
        if let Some(commit) = repo.commit(id.revision) {
            let snapshot = repo.snapshot(&commit);
            if snapshot.is_loadable() {
                if cfg!(feature = "hub") && !self.offline && !snapshot.is_complete() {
                    // Of this commit, as the branch may have moved on since.
                    let rest = self.fetch(&Id { revision: &commit, ..id }, &repo, progress);
                    if let Err(error) = rest {
                        tracing::warn!("{id} may lack files in {}: {}", cache.display(), one_line(&error));
                    }
                }
                return Ok(snapshot.folder);
            }
        }
        if self.offline {
            return Err(Error::Hub(format!(
                "no folder {name}, and {id} is not complete in {}, which is all there is to look at offline",
                cache.display()
            )));
        }
        self.fetch(&id, &repo, progress)
    }

    #[cfg(not(feature = "hub"))]
    fn fetch(&self, id: &Id<'_>, repo: &Repository, _: Progress<'_>) -> Result<PathBuf> {
        let folder = repo.folder.display();
        Err(Error::Hub(format!("{id} is not complete in {folder}, and this build cannot fetch (feature `hub`)")))
    }
}

/// `owner/name@revision`, each part of it fit to be part of a path and of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id<'a> {
    /// Models are older than owners.
    owner: Option<&'a str>,
    name: &'a str,
    revision: &'a str,
}

impl<'a> Id<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        /// The hub's own limit.
        const MAX_LENGTH: usize = 96;
        let (model, revision) = text.split_once('@').unwrap_or((text, "main"));
        let (owner, name) = match model.split_once('/') {
            Some((owner, name)) => (Some(owner), name),
            None => (None, model),
        };
        let plain = |part: &str, also: &[char]| {
            !part.is_empty()
                && part.len() <= MAX_LENGTH
                && part.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(&c))
                && !part.starts_with(['-', '.', '/'])
                && !part.ends_with(['-', '.', '/'])
                && !part.contains("..")
        };
        // Two dashes stand for the slash in the cache.
        let part = |part: &str| plain(part, &['-', '_', '.']) && !part.contains("--");
        let fits =
            owner.is_none_or(part) && part(name) && plain(revision, &['-', '_', '.', '/']) && !revision.contains("//");
        fits.then_some(Self { owner, name, revision })
    }

    /// As addresses have it, without the revision.
    fn model(&self) -> String {
        match self.owner {
            Some(owner) => format!("{owner}/{}", self.name),
            None => self.name.to_owned(),
        }
    }
}

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.model(), self.revision)
    }
}

/// Whether this is the name of a commit or a blob: the hexadecimal digits of a SHA-1 or a SHA-256.
fn is_hash(text: &str) -> bool {
    [40, 64].contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// A model in the cache: `blobs/` has the files by their hashes, `snapshots/{commit}/` their names as links,
/// `refs/` the commits of branches and tags, and `.no_exist/{commit}/` the names that a commit is known not to have.
struct Repository {
    folder: PathBuf,
}

impl Repository {
    /// The commit that a revision is, as far as the cache knows.
    fn commit(&self, revision: &str) -> Option<String> {
        let named = files::read_text(&self.folder.join("refs").join(revision)).ok();
        let commit = named.map_or_else(|| revision.to_owned(), |text| text.trim().to_owned());
        is_hash(&commit).then_some(commit)
    }

    fn snapshot(&self, commit: &str) -> Snapshot {
        Snapshot {
            folder: self.folder.join("snapshots").join(commit),
            missing: self.folder.join(".no_exist").join(commit),
        }
    }
}

/// The files of one commit.
struct Snapshot {
    folder: PathBuf,
    /// Has an empty file for each that the commit does not have.
    missing: PathBuf,
}

impl Snapshot {
    /// Whether the config and all weights are there. A file under its name has come to its end: until then it has
    /// another one.
    fn is_loadable(&self) -> bool {
        let Ok(weights) = self.documents().weights() else { return false };
        let there = |name: &str| weights.join(name).is_file();
        let has_shards =
            || tensors::shards_of_index(&weights).is_ok_and(|shards| shards.iter().all(|shard| there(shard)));
        there(CONFIG) && (there(SINGLE) || has_shards())
    }

    /// Tells if each small file that is read is there, or known to be missing.
    fn is_complete(&self) -> bool {
        let is_missing = |name: &str| self.missing.join(name).exists();
        let known = |name: &str| self.folder.join(name).is_file() || is_missing(name);
        known(MODULES)
            && (self.folder.join(ADDITIONAL_CHAT_TEMPLATES).is_dir() || is_missing(ADDITIONAL_CHAT_TEMPLATES))
            && self.small_files().is_ok_and(|names| names.iter().all(|name| known(name)))
    }

    /// The names of all small files that are read, once `modules.json` is there: some lie in folders that it names.
    fn small_files(&self) -> Result<Vec<String>> {
        let documents = self.documents();
        let mut names =
            modules::config_files(&self.folder, documents.json_if_present(FileName::Modules).ok().flatten())?;
        for file in FileName::ALL {
            names.push(documents.name_of(*file)?);
        }
        Ok(names)
    }

    fn documents(&self) -> Documents {
        Documents::new(&self.folder)
    }
}

#[cfg(test)]
mod tests;
