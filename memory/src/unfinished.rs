//! What appears under its name when it is complete.

use std::ffi::OsString;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

/// A file, or a link, under a name that nobody else uses. Whoever looks for the name that it is given at the end finds
/// what was there before, or all of it. It goes away with this value unless it is completed; a process that is killed
/// leaves it.
///
/// ```
/// use std::fs::{self, File};
/// use std::io::Write;
///
/// use sinew_memory::Unfinished;
///
/// let path = std::env::temp_dir().join(format!("answer-{}", std::process::id()));
/// let (unfinished, mut file) = Unfinished::beside(&path, |new| File::create_new(new))?;
/// file.write_all(b"42")?;
/// assert!(!path.exists());
/// unfinished.complete(&path)?;
/// assert_eq!(fs::read(&path)?, b"42");
/// # fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Unfinished {
    path: PathBuf,
}

impl Unfinished {
    /// One in the folder of `path`, and what `make` gives, which makes it, or fails where there is something already.
    ///
    /// # Errors
    /// A path without a file name, and those of `make`.
    pub fn beside<T>(path: &Path, make: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<(Self, T)> {
        let name =
            path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is not a file name"))?;
        let mut hidden = OsString::from(".");
        hidden.push(name);
        // Random: processes of several containers that share a folder may have one number.
        hidden.push(format!(".{:016x}.unfinished", RandomState::new().hash_one(path)));
        let path = path.with_file_name(hidden);
        // Where that fails, what is there is another's.
        let made = make(&path)?;
        Ok((Self { path }, made))
    }

    /// Gives it this name, be something there or not.
    ///
    /// # Errors
    /// A folder there, or one that cannot be written.
    pub fn complete(self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After `complete` there is nothing of this name any more.
        drop(fs::remove_file(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn an_unfinished_file_is_removed_by_who_made_it_and_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("entry");
        let names =
            || -> Vec<PathBuf> { fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect() };
        let taken = Unfinished::beside(&path, |new| {
            fs::write(new, "another's")?;
            File::create_new(new)
        });
        assert_eq!(taken.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        let others = names();
        assert_eq!(others.len(), 1, "{others:?}");
        assert_eq!(fs::read(&others[0]).unwrap(), b"another's");
        fs::remove_file(&others[0]).unwrap();

        let make = || Unfinished::beside(&path, |new| fs::write(new, "mine")).unwrap().0;
        make().complete(&path).unwrap();
        assert_eq!(names(), std::slice::from_ref(&path));
        assert_eq!(fs::read(&path).unwrap(), b"mine");
        drop(make());
        assert_eq!(names(), std::slice::from_ref(&path));
        // Where it cannot have its name.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        make().complete(&path).unwrap_err();
        assert_eq!(names(), std::slice::from_ref(&path));
        assert!(Unfinished::beside(Path::new(".."), |new| File::create_new(new)).is_err());
    }
}
