//! The folder of a model while it is written: it has another name until it is complete.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::documents::FileName;
use crate::error::{Error, Result};
use crate::files;
use crate::folder::Folder;

/// Ends of the names of what is copied: configs, tokenizers, chat templates, and the code of models that bring theirs.
/// Weights in other forms are not.
const COPIED: [&str; 6] = ["json", "jinja", "txt", "model", "tiktoken", "py"];
/// The end of the names of indices, which are of weights: those of other forms than what is written too.
const INDICES: &str = ".index.json";
/// A folder of chat templates.
const TEMPLATES: &str = "additional_chat_templates";
/// How the name of a folder ends that is being written.
const UNFINISHED: &str = ".unfinished";
/// Bytes of the output's name that it begins with: with the rest it has no more than the 255 of most file systems.
const MAX_START: usize = 200;
/// The folder in which ext4 keeps what a check finds, in every file system that it has just made.
const LOST_AND_FOUND: &str = "lost+found";

/// Where the folder `output` will be.
///
/// # Errors
/// What is there already, but for an empty folder.
pub(super) fn place(source: &Path, output: &Path) -> Result<PathBuf> {
    // With a `/` behind it a link would be what it leads to.
    let output = &*output.components().collect::<PathBuf>();
    let refuse = |problem| Err(refusal(output, problem));
    let kind = match fs::metadata(output) {
        Ok(kind) => kind,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if output.is_symlink() {
                return refuse("is a link to nothing");
            }
            return if output.file_name().is_some() { Ok(output.to_owned()) } else { refuse("has no name") };
        }
        Err(error) => return Err(Error::io("open", output, error)),
    };
    if !kind.is_dir() {
        return refuse("is a file");
    }
    let place = fs::canonicalize(output).map_err(|e| Error::io("open", output, e))?;
    if fs::canonicalize(source).is_ok_and(|source| source == place) {
        return refuse("is the model itself");
    }
    check_empty(&place, None)?;
    Ok(place)
}

/// Refuses a folder in which is more than what runs are writing there, or left when they were killed, which is given.
/// `own` is what this run writes.
fn check_empty(folder: &Path, own: Option<&OsStr>) -> Result<Vec<OsString>> {
    let is_unfinished = |name: &OsString| {
        let name = name.as_encoded_bytes();
        name.starts_with(b".") && name.ends_with(UNFINISHED.as_bytes())
    };
    // What is found belongs to root, who alone may read the folder.
    let is_nothing = |name: &OsString| {
        let denied = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let is_empty = || fs::read_dir(folder.join(name)).map_or_else(denied, |mut all| all.next().is_none());
        Some(&**name) == own || name == LOST_AND_FOUND && is_empty()
    };
    let mut names = names_in(folder)?;
    names.retain(|name| !is_nothing(name));
    names.sort();
    let (left, others): (Vec<_>, Vec<_>) = names.into_iter().partition(is_unfinished);
    let Some(first) = others.first() else { return Ok(left) };
    let mut problem = format!("is not empty: it has {}", Path::new(first).display());
    if others.len() > 1 {
        problem += &format!(" and {} more", others.len() - 1);
    }
    if !left.is_empty() {
        problem += &format!(", and {}", left_behind(&left));
    }
    Err(refusal(folder, &problem))
}

/// What runs have left, or are at work on, in words.
fn left_behind(names: &[OsString]) -> String {
    format!("{}, left by a run that was killed, which can be removed unless one is at work", listed(names))
}

/// Names, between commas.
fn listed(names: &[impl AsRef<Path>]) -> String {
    names.iter().map(|name| name.as_ref().display().to_string()).collect::<Vec<_>>().join(", ")
}

fn refusal(output: &Path, problem: &str) -> Error {
    let output = output.display();
    Error::Input(format!("the output {output} {problem}; a folder that is new or empty is needed"))
}

/// A folder that is removed unless it is completed.
pub(super) struct Unfinished {
    path: PathBuf,
    output: PathBuf,
    /// Whether `output` is there: it may be one that cannot be replaced, as where something is mounted.
    is_inside: bool,
    /// What other runs have left beside it, or are at work on.
    others: Vec<OsString>,
}

impl Unfinished {
    /// One beside `output`, or inside where that is there.
    pub fn create(output: PathBuf) -> Result<Self> {
        let is_inside = output.is_dir();
        let name = output.file_name().unwrap_or_default().to_string_lossy();
        let start = &name[..name.floor_char_boundary(MAX_START)];
        let mut others = Vec::new();
        // Those of other runs stay: they may be at work.
        let path = loop {
            let name = format!(".{start}.{}{UNFINISHED}", others.len());
            let path = if is_inside { output.join(&name) } else { output.with_file_name(&name) };
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => others.push(name.into()),
                created => {
                    let what = if is_inside { "write to" } else { "create" };
                    break created.map(|()| path).map_err(|e| Error::io(what, &output, e))?;
                }
            }
        };
        Ok(Self { path, output, is_inside, others })
    }

    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file, and makes the folder that its name has.
    pub fn write(&self, name: &Path, bytes: &[u8]) -> Result<()> {
        let path = self.path_of(name);
        make_parent(&path)?;
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(|e| Error::io("write", &path, e))
    }

    /// Copies a file.
    pub fn copy(&self, from: &Path, name: &Path) -> Result<()> {
        let to = self.path_of(name);
        make_parent(&to)?;
        let copied = File::open(from).and_then(|mut source| {
            let mut file = File::create_new(&to)?;
            io::copy(&mut source, &mut file)?;
            file.set_permissions(source.metadata()?.permissions())?;
            file.sync_all()
        });
        copied.map_err(|e| Error::io(&format!("copy {} to", from.display()), &to, e))
    }

    /// Gives it its name, or what is in it a place in the folder that has the name.
    pub fn complete(self) -> Result<()> {
        let Self { path, output, is_inside, others } = &self;
        sync_folders(path)?;
        let rename = &mut |from: &Path, to: &Path| fs::rename(from, to);
        if *is_inside {
            let left = check_empty(output, path.file_name())?;
            let mut names = names_in(path)?;
            // Nothing is a model before its config is there.
            names.sort_by_key(|name| name == FileName::Config.as_str());
            move_all(&names, path, output, rename)?;
            if !left.is_empty() {
                tracing::warn!("{} has {}", output.display(), left_behind(&left));
            }
            return Ok(());
        }
        let beside = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let renamed = rename(path, output);
        let kept = renamed.and_then(|()| sync_folder(beside).inspect_err(|_| drop(rename(output, path))));
        kept.map_err(|e| Error::io("create", output, e))?;
        if !others.is_empty() {
            tracing::warn!("{} has {}", beside.display(), left_behind(others));
        }
        Ok(())
    }
}

fn make_parent(path: &Path) -> Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))
}

/// Moves what has these names from a folder into another: all of it or, where something cannot be moved, nothing.
fn move_all(
    names: &[OsString],
    from: &Path,
    to: &Path,
    rename: &mut dyn FnMut(&Path, &Path) -> io::Result<()>,
) -> Result<()> {
    let mut moved: Vec<&OsString> = Vec::new();
    let mut place = to.to_owned();
    let mut move_them = || {
        for name in names {
            place = to.join(name);
            if name == FileName::Config.as_str() {
                sync_folder(to)?;
            }
            // What somebody else has just put there would be lost.
            if place.symlink_metadata().is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            rename(&from.join(name), &place)?;
            moved.push(name);
        }
        sync_folder(to)
    };
    let Err(mut error) = move_them() else { return Ok(()) };
    moved.retain(|name| rename(&to.join(name), &from.join(name)).is_err());
    if !moved.is_empty() {
        let stay = listed(&moved);
        error = io::Error::new(error.kind(), format!("{error}; {stay} could not be taken back, and can be removed"));
    }
    Err(Error::io("create", &place, error))
}

/// Has all that is in a folder, and in those inside, outlast a loss of power.
fn sync_folders(folder: &Path) -> Result<()> {
    for inside in names_in(folder)?.iter().map(|name| folder.join(name)).filter(|path| path.is_dir()) {
        sync_folders(&inside)?;
    }
    sync_folder(folder).map_err(|e| Error::io("write", folder, e))
}

/// Has the names in a folder outlast a loss of power.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        // Not every file system can do that, and not every folder that can be written to may be opened.
        Err(error) if [InvalidInput, PermissionDenied, Unsupported].contains(&error.kind()) => Ok(()),
        synced => synced,
    }
}

/// The system sees to it.
#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Where it was completed there is none, or an empty one.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What stands beside the weights and is copied: files, and their names in the model's folder.
///
/// # Errors
/// A link that leads out of the folder: somebody may have put it there to have another file published with the model.
/// The model's own config, which is written, may be none either.
pub(super) fn others(folder: &Folder) -> Result<Vec<(PathBuf, PathBuf)>> {
    let source = folder.path();
    let is_copied = |name: &OsStr| {
        let end = Path::new(name).extension().and_then(OsStr::to_str);
        let is_index = name.as_encoded_bytes().ends_with(INDICES.as_bytes());
        end.is_some_and(|end| COPIED.contains(&end)) && name != FileName::Config.as_str() && !is_index
    };
    let of_model = files_in(source)?.into_iter().filter(|name| is_copied(name)).map(PathBuf::from);
    let mut copied: BTreeSet<PathBuf> = of_model.collect();
    let transformer = PathBuf::from(folder.documents().transformer()?);
    let weights = files_in(&folder.documents().weights()?)?;
    copied.extend(weights.into_iter().filter(|name| is_copied(name)).map(|name| transformer.join(name)));
    let templates = source.join(TEMPLATES);
    if templates.is_dir() {
        let of_templates = files_in(&templates)?.into_iter().filter(|name| is_copied(name));
        copied.extend(of_templates.map(|name| Path::new(TEMPLATES).join(name)));
    }
    // The modules of sentence-transformers have folders of their own.
    let modules = folder.documents().json_if_present(FileName::Modules)?.and_then(Value::as_array);
    for path in modules.into_iter().flatten().filter_map(|module| module.get("path")?.as_str()) {
        if path.is_empty() {
            continue;
        }
        let inside = files::join_inside(Path::new(""), path, FileName::Modules.as_str())?;
        let inside: PathBuf = inside.components().filter(|part| *part != Component::CurDir).collect();
        let config = inside.join(FileName::Config.as_str());
        // That of the model itself is written.
        if inside != transformer && source.join(&config).is_file() {
            copied.insert(config);
        }
    }
    files::real_path_inside(source, &folder.documents().path_of(FileName::Config)?)?;
    let of = |name: PathBuf| Ok((files::real_path_inside(source, &source.join(&name))?, name));
    copied.into_iter().map(of).collect()
}

/// The names of the files in a folder.
fn files_in(folder: &Path) -> Result<Vec<OsString>> {
    let mut names = names_in(folder)?;
    names.retain(|name| folder.join(name).is_file());
    Ok(names)
}

/// The names of all that is in a folder.
fn names_in(folder: &Path) -> Result<Vec<OsString>> {
    let names = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    names.map_err(|e| Error::io("read", folder, e))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two folders, and files in the first that are to be moved into the second.
    fn folders() -> (tempfile::TempDir, [PathBuf; 2], Vec<OsString>) {
        let place = tempfile::tempdir().expect("a folder");
        let [from, to] = ["from", "to"].map(|name| place.path().join(name));
        let names = ["a", "b", "c", "config.json"];
        [&from, &to].into_iter().for_each(|folder| fs::create_dir(folder).expect("a folder"));
        names.iter().for_each(|name| fs::write(from.join(name), name).expect("written"));
        (place, [from, to], names.map(OsString::from).to_vec())
    }

    fn sorted(folder: &Path) -> Vec<OsString> {
        let mut names = names_in(folder).expect("a folder");
        names.sort();
        names
    }

    #[test]
    fn all_is_moved_or_nothing() {
        let (_place, [from, to], names) = folders();
        let rename = &mut |from: &Path, to: &Path| fs::rename(from, to);
        fs::write(to.join("c"), "another's").expect("written");
        let error = move_all(&names, &from, &to, rename).expect_err("it would be lost").one_line();
        assert!(error.contains("cannot create") && error.contains("to/c") && !error.contains("removed"), "{error}");
        assert_eq!((sorted(&from), sorted(&to)), (names.clone(), vec![OsString::from("c")]));
        assert_eq!(fs::read_to_string(to.join("c")).expect("it is there"), "another's");
        fs::remove_file(to.join("c")).expect("removed");
        move_all(&names, &from, &to, rename).expect("moved");
        assert_eq!((sorted(&from), sorted(&to)), (vec![], names));
    }

    #[test]
    fn what_cannot_be_taken_back_is_named() {
        let (_place, [from, to], names) = folders();
        let error = move_all(&names, &from, &to, &mut |source, target| {
            let fails = target == to.join("c") || source == to.join("b");
            if fails { Err(io::ErrorKind::StorageFull.into()) } else { fs::rename(source, target) }
        });
        let error = error.expect_err("one fails").one_line();
        assert!(error.contains("to/c: no storage space; b could not be taken back"), "{error}");
        assert_eq!(sorted(&from), ["a", "c", "config.json"]);
        assert_eq!(sorted(&to), ["b"]);
    }
}
