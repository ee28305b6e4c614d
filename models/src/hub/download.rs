//! Downloads: a file's bytes, over as many connections as it takes, and checked.
//!
//! Not the `hf-hub` crate's, which have no time limit, follow redirects for ever, show the token to every host on the
//! way, and take what a connection brought before it broke for the whole.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

use hf_hub::api::sync::ApiRepo;
use ring::digest;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode, header};

use super::{Hub, Progress};
use crate::error::{Error, Result, one_line};

/// A host that does not answer is given up after this; a slow one is not, as long as it sends something.
pub(super) const CONNECT: Duration = Duration::from_secs(20);
pub(super) const SILENCE: Duration = Duration::from_secs(60);
/// How often a file is asked for, while its connections break after some bytes.
const ATTEMPTS: usize = 5;

/// A file to fetch: its name in the cache is that of its content. The hash of a file that is kept apart from git is the
/// SHA-256 of its bytes.
pub(super) struct Blob<'a> {
    pub name: &'a str,
    pub hash: &'a str,
    pub size: u64,
}

/// What the files of one commit are downloaded with.
pub(super) struct Download<'a> {
    hub: &'a Hub,
    api: ApiRepo,
    agent: Agent,
    progress: Progress<'a>,
}

impl<'a> Download<'a> {
    /// Of the commit that `api` names.
    pub(super) fn new(hub: &'a Hub, api: ApiRepo, progress: Progress<'a>) -> Self {
        Self { hub, api, agent: agent(), progress }
    }

    /// Downloads a file, or the rest of it where an earlier attempt was cut.
    pub(super) fn blob(&mut self, blob: &Blob<'_>, path: &Path) -> Result<()> {
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

fn agent() -> Agent {
    let config = Agent::config_builder().redirect_auth_headers(RedirectAuthHeaders::SameHost);
    // What is counted and resumed are the bytes of the file, not of a compressed form.
    let config = config.http_status_as_error(false).accept_encoding("identity");
    config.timeout_connect(Some(CONNECT)).timeout_per_read(Some(SILENCE)).build().into()
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
