//! Small text files beside a checkpoint, read with a limit.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// The weights of a model in one file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The list of the files of a model with several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// No `config.json` comes near this. Parsed, JSON takes up to 16 times its size.
pub(crate) const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// No `tokenizer.json` comes near this. It keeps a file that was swapped for a huge one out of memory.
const MAX_LONG_BYTES: u64 = 64 << 20;

/// The text of a config at `path`.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    read_within(path, MAX_CONFIG_BYTES)
}

/// The text of `path`, which lists the tokens of a language.
pub(crate) fn read_long(path: &Path) -> Result<String> {
    read_within(path, MAX_LONG_BYTES)
}

/// The text of `path`, of at most `max` bytes.
pub(crate) fn read_within(path: &Path, max: u64) -> Result<String> {
    let kind = fs::metadata(path).map_err(|e| Error::io("read", path, e))?;
    if !kind.is_file() {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file");
        return Err(Error::io("read", path, source));
    }
    let too_large =
        || Error::Config { file: path.display().to_string(), problem: format!("larger than {} MiB", max >> 20) };
    if kind.len() > max {
        return Err(too_large());
    }
    let file = File::open(path).map_err(|e| Error::io("read", path, e))?;
    let mut text = String::new();
    // It may grow meanwhile: one byte more than allowed tells a file at the limit from one beyond it.
    file.take(max + 1).read_to_string(&mut text).map_err(|e| Error::io("read", path, e))?;
    if text.len() as u64 > max {
        return Err(too_large());
    }
    Ok(text)
}

/// What was read, or `None` where there was no such file.
pub(crate) fn if_present<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// `folder/name` for a name that came out of a file: relative, and without `..`.
pub(crate) fn join_inside(folder: &Path, name: &str, named_by: &str) -> Result<PathBuf> {
    let relative = Path::new(name);
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    // A backslash separates folders on Windows only; a checkpoint that needs one to be opened is refused
    // everywhere, so that what loads on one system is no different on another.
    if !plain || name.is_empty() || name.contains(['\\', '\0']) {
        return Err(Error::Checkpoint {
            file: named_by.to_owned(),
            problem: format!("names `{}`, which is outside the model's folder", name.escape_debug()),
        });
    }
    Ok(folder.join(relative))
}

/// `path` with its links followed, provided that it still lies in `folder`.
///
/// The hub's cache keeps a model as `models--…/snapshots/<revision>`, whose files are links to
/// `models--…/blobs`: those are the one place outside that links may lead to.
pub(crate) fn real_path_inside(folder: &Path, path: &Path) -> Result<PathBuf> {
    let real = |path: &Path| fs::canonicalize(path).map_err(|e| Error::io("open", path, e));
    let (folder, target) = (real(folder)?, real(path)?);
    let blobs = folder
        .parent()
        .filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"))
        .and_then(Path::parent)
        .map(|model| model.join("blobs"));
    if target.starts_with(&folder) || blobs.is_some_and(|blobs| target.starts_with(blobs)) {
        return Ok(target);
    }
    Err(Error::Checkpoint {
        file: path.display().to_string(),
        problem: format!("is a link to {}, which is outside the model's folder; copy it in", target.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leaves_the_folder_is_refused() {
        let folder = Path::new("/models/tiny");
        for name in ["../x", "/etc/passwd", "a/../../x", "", "..\\x", "a\0b"] {
            let error = join_inside(folder, name, "the index").expect_err(name);
            assert!(error.to_string().contains("outside"), "{error}");
        }
        let path = join_inside(folder, "./a/b.safetensors", "the index").expect("inside");
        assert!(path.starts_with(folder));
    }
}
