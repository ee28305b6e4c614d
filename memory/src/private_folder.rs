//! What was made or measured here, kept on disk, private to the user: compiled kernels, what is known of devices, tuned
//! times.
//!
//! An entry holds all that its contents depend on, word for word, so that a hash that happens to be the same can never
//! bring another kernel. What is missing, cut short, damaged or somebody else's is made again; a folder that cannot be
//! written costs only time.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Unfinished;
use crate::messages::{self, Severity};

/// First in every entry; the digit changes with the format.
const MAGIC: &[u8; 8] = b"sinew-k1";
/// Lengths of key and image, and the checksum of both.
const HEADER: usize = MAGIC.len() + 3 * size_of::<u64>();
/// The largest contents that are kept, many times a module of kernels or an adapter's pipelines: what claims to be
/// larger is not read.
const LARGEST: u64 = 64 << 20;
/// How long a writer waits for others of the same file, each of which takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// A folder of checked files that nobody but the user could have written.
///
/// ```
/// use sinew_memory::PrivateFolder;
///
/// let nowhere = PrivateFolder::none();
/// nowhere.keep("answer", "of version 1", b"42");
/// assert_eq!(nowhere.get("answer", "of version 1"), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivateFolder {
    folder: Option<PathBuf>,
}

impl PrivateFolder {
    /// The user's for one kind of contents: `sinew/NAME` in `$XDG_CACHE_HOME` or `$HOME/.cache`. Where neither is set
    /// nothing is kept.
    pub fn of_user(name: &str) -> Self {
        Self::in_home(name, |variable| std::env::var_os(variable))
    }

    fn in_home(name: &str, variable: impl Fn(&str) -> Option<OsString>) -> Self {
        // A path from wherever the process happens to be is nobody's home.
        let path = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
        Self { folder: caches.map(|caches| caches.join("sinew").join(name)) }
    }

    /// One in a folder, which is made when it is first written to.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()) }
    }

    /// One that keeps nothing.
    pub fn none() -> Self {
        Self { folder: None }
    }

    /// The folder; `None` where nothing is kept.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// What `make` makes, or made before for the same `key`: a compiled kernel. `name` begins the file's name.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn image<E>(&self, name: &str, key: &[&str], make: impl FnOnce() -> Result<Vec<u8>, E>) -> Result<Vec<u8>, E> {
        let key = key.join("\0");
        let file = Self::file(name, &key);
        if let Some(image) = self.get(&file, &key) {
            return Ok(image);
        }
        let image = make()?;
        self.keep(&file, &key, &image);
        Ok(image)
    }

    /// The name of a file for a key, so that contents of others do not replace each other.
    pub fn file(name: &str, key: &str) -> String {
        format!("{name}-{:016x}", checksum(&[key.as_bytes()]))
    }

    /// What a file holds, if it was kept whole for this key, and nobody else could have written it.
    pub fn get(&self, file: &str, key: &str) -> Option<Vec<u8>> {
        read(&self.folder.as_ref()?.join(file), key.as_bytes())
    }

    /// Makes a file hold this, or leaves it as it is. Readers see all of it or nothing.
    pub fn keep(&self, file: &str, key: &str, contents: &[u8]) {
        let Some(folder) = &self.folder else { return };
        let path = folder.join(file);
        if let Err(error) = write(folder, &path, key.as_bytes(), contents) {
            messages::send(Severity::Debug, format_args!("cannot keep {}: {error}", path.display()));
        }
    }

    /// Makes a file hold what `change` makes of what it holds, which is `None` where [`PrivateFolder::get`] has nothing.
    /// Of changes at the same time, in any number of processes, none is lost.
    ///
    /// # Errors
    /// A folder or file that cannot be written, or another writer that does not come to an end.
    pub fn update(&self, file: &str, key: &str, change: impl FnOnce(Option<Vec<u8>>) -> Vec<u8>) -> io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        private::make_folder(folder)?;
        // A file of its own, which is never replaced; the lock ends with the handle.
        let lock = private::lock_file(&folder.join(format!("{file}.lock")))?;
        let begun = Instant::now();
        while let Err(error) = lock.try_lock() {
            match error {
                fs::TryLockError::WouldBlock if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                fs::TryLockError::WouldBlock => {
                    let why = format!("another process has been writing it for {} s", PATIENCE.as_secs());
                    return Err(io::Error::new(io::ErrorKind::WouldBlock, why));
                }
                fs::TryLockError::Error(error) => return Err(error),
            }
        }
        let contents = change(self.get(file, key));
        write(folder, &folder.join(file), key.as_bytes(), &contents)
    }
}

/// FNV-1a (Fowler, Noll and Vo 1991): names files, and finds damage and what was forgotten; nothing rests on it that an
/// attacker could want.
pub(crate) fn checksum(parts: &[&[u8]]) -> u64 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn read(path: &Path, key: &[u8]) -> Option<Vec<u8>> {
    let mut file = private::open(path).ok()?;
    let mut header = [0; HEADER];
    file.read_exact(&mut header).ok()?;
    let word = |i: usize| {
        let at = MAGIC.len() + i * size_of::<u64>();
        Some(u64::from_le_bytes(header[at..at + size_of::<u64>()].try_into().ok()?))
    };
    let (key_len, image_len, sum) = (word(0)?, word(1)?, word(2)?);
    if header[..MAGIC.len()] != MAGIC[..] || key_len != key.len() as u64 || image_len > LARGEST {
        return None;
    }
    if file.metadata().ok()?.len() != HEADER as u64 + key_len + image_len {
        return None;
    }
    let mut body = Vec::new();
    file.take(key_len + image_len + 1).read_to_end(&mut body).ok()?;
    if body.len() as u64 != key_len + image_len || checksum(&[&body]) != sum {
        return None;
    }
    let image = body.split_off(key.len());
    (body == key).then_some(image)
}

fn write(folder: &Path, path: &Path, key: &[u8], image: &[u8]) -> io::Result<()> {
    if image.len() as u64 > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large"));
    }
    private::make_folder(folder)?;
    let mut entry = MAGIC.to_vec();
    for word in [key.len() as u64, image.len() as u64, checksum(&[key, image])] {
        entry.extend(word.to_le_bytes());
    }
    entry.extend(key);
    entry.extend(image);
    let (unfinished, mut file) = Unfinished::beside(path, private::create)?;
    file.write_all(&entry)?;
    unfinished.complete(path)
}

/// Files that nobody else could have written: a kernel runs with the rights of whoever loads it.
#[cfg(unix)]
mod private {
    use std::fs::{DirBuilder, File, Metadata, OpenOptions, metadata};
    use std::io;
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
    use std::path::Path;

    /// Write permission of group and others.
    const WRITABLE_BY_OTHERS: u32 = 0o022;

    fn check(metadata: &Metadata) -> io::Result<()> {
        // SAFETY: it cannot fail and touches nothing.
        let user = unsafe { libc::geteuid() };
        if metadata.uid() == user && metadata.mode() & WRITABLE_BY_OTHERS == 0 {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "somebody else owns it or could write it"))
    }

    pub fn open(path: &Path) -> io::Result<File> {
        if let Some(folder) = path.parent() {
            check(&metadata(folder)?)?;
        }
        // No pipe or device is waited for, and no link followed.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        check(&file.metadata()?)?;
        Ok(file)
    }

    pub fn make_folder(folder: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        check(&metadata(folder)?)
    }

    pub fn create(path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
    }

    pub fn lock_file(path: &Path) -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
    }
}

/// Where files belong to the user's profile.
#[cfg(not(unix))]
mod private {
    use std::fs::{File, create_dir_all};
    use std::io;
    use std::path::Path;

    pub fn open(path: &Path) -> io::Result<File> {
        File::open(path)
    }

    pub fn make_folder(folder: &Path) -> io::Result<()> {
        create_dir_all(folder)
    }

    pub fn create(path: &Path) -> io::Result<File> {
        File::create_new(path)
    }

    pub fn lock_file(path: &Path) -> io::Result<File> {
        File::options().write(true).create(true).truncate(false).open(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(variables: &[(&str, &str)]) -> Option<PathBuf> {
        let value = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into());
        PrivateFolder::in_home("kernels", value).folder
    }

    #[cfg(unix)]
    #[test]
    fn the_users_folder_is_where_the_environment_says_and_nowhere_else() {
        let home = Some(PathBuf::from("/home/me/.cache/sinew/kernels"));
        assert_eq!(
            folder(&[("XDG_CACHE_HOME", "/caches"), ("HOME", "/home/me")]).unwrap(),
            Path::new("/caches/sinew/kernels")
        );
        assert_eq!(folder(&[("HOME", "/home/me")]), home);
        for no_path in ["", "caches"] {
            assert_eq!(folder(&[("XDG_CACHE_HOME", no_path), ("HOME", "/home/me")]), home);
            assert_eq!(folder(&[("HOME", no_path)]), None);
        }
        assert_eq!(folder(&[]), None);
    }

    #[test]
    fn what_is_too_large_is_neither_kept_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PrivateFolder::at(folder.path());
        cache.keep("entry", "key", &vec![0; LARGEST as usize + 1]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        cache.keep("entry", "key", b"image");
        assert_eq!(cache.get("entry", "key").unwrap(), b"image");
        // Much longer than it says, without a byte on the disk.
        let file = fs::OpenOptions::new().write(true).open(folder.path().join("entry")).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(cache.get("entry", "key"), None);
    }
}
