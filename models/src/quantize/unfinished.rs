//! The folder of a model while it is written: it has another name until it is complete.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::files;
use crate::folder::{FileName, Folder};
use crate::tensors::INDEX;

/// Ends of the names of what is copied: configs, tokenizers, chat templates, and the code of models that bring theirs.
/// Weights in other forms are not.
const COPIED: [&str; 6] = ["json", "jinja", "txt", "model", "tiktoken", "py"];
/// A folder of chat templates.
const TEMPLATES: &str = "additional_chat_templates";
/// How the name of a folder ends that is being written.
const UNFINISHED: &str = ".unfinished";

/// Where the folder `output` will be.
///
/// # Errors
/// What is there already, but for an empty folder.
pub(super) fn place(source: &Path, output: &Path) -> Result<PathBuf> {
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
    check_empty(&place)?;
    Ok(place)
}

/// Refuses a folder in which is more than what runs are writing there, or left when they were killed.
fn check_empty(folder: &Path) -> Result<()> {
    let is_unfinished = |name: &OsString| {
        let name = name.as_encoded_bytes();
        name.starts_with(b".") && name.ends_with(UNFINISHED.as_bytes())
    };
    match names_in(folder)?.iter().all(is_unfinished) {
        true => Ok(()),
        false => Err(refusal(folder, "is not empty")),
    }
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
}

impl Unfinished {
    /// One beside `output`, or inside where that is there.
    pub fn create(output: PathBuf) -> Result<Self> {
        let is_inside = output.is_dir();
        let mut count = 0;
        // Those of other runs stay: they may be at work.
        let path = loop {
            let mut name = OsString::from(".");
            name.push(output.file_name().unwrap_or_default());
            name.push(format!(".{count}{UNFINISHED}"));
            let path = if is_inside { output.join(name) } else { output.with_file_name(name) };
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => count += 1,
                created => {
                    let what = if is_inside { "write to" } else { "create" };
                    break created.map(|()| path).map_err(|e| Error::io(what, &output, e))?;
                }
            }
        };
        Ok(Self { path, output, is_inside })
    }

    pub fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path_of(name);
        fs::write(&path, bytes).map_err(|e| Error::io("write", &path, e))
    }

    /// Copies a file of the original to the same place.
    fn copy(&self, source: &Path, name: &Path) -> Result<()> {
        let (from, to) = (source.join(name), self.path_of(name));
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|e| Error::io("create", folder, e))?;
        }
        fs::copy(&from, &to).map_err(|e| Error::io(&format!("copy {} to", from.display()), &to, e))?;
        Ok(())
    }

    /// Gives it its name, or what is in it a place in the folder that has the name.
    pub fn complete(self) -> Result<()> {
        let Self { path, output, is_inside } = &self;
        if !is_inside {
            return fs::rename(path, output).map_err(|e| Error::io("create", output, e));
        }
        check_empty(output)?;
        let mut names = names_in(path)?;
        // Nothing is a model before its config is there.
        names.sort_by_key(|name| name == FileName::Config.as_str());
        for name in names {
            let to = output.join(&name);
            fs::rename(path.join(name), &to).map_err(|e| Error::io("create", &to, e))?;
        }
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Where it was completed there is none, or an empty one.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Copies what stands beside the weights.
pub(super) fn copy_others(folder: &Folder, unfinished: &Unfinished) -> Result<()> {
    let source = folder.path();
    let is_copied = |name: &OsStr| {
        let end = Path::new(name).extension().and_then(OsStr::to_str);
        end.is_some_and(|end| COPIED.contains(&end)) && name != FileName::Config.as_str() && name != INDEX
    };
    for name in files_in(source)?.into_iter().filter(|name| is_copied(name)) {
        unfinished.copy(source, Path::new(&name))?;
    }
    let templates = source.join(TEMPLATES);
    if templates.is_dir() {
        for name in files_in(&templates)?.into_iter().filter(|name| is_copied(name)) {
            unfinished.copy(source, &Path::new(TEMPLATES).join(name))?;
        }
    }
    // The modules of sentence-transformers have folders of their own.
    let modules = folder.documents().json_if_present(FileName::Modules)?.and_then(Value::as_array);
    for path in modules.into_iter().flatten().filter_map(|module| module.get("path")?.as_str()) {
        if path.is_empty() {
            continue;
        }
        let inside = files::join_inside(Path::new(""), path, FileName::Modules.as_str())?;
        let config = inside.join(FileName::Config.as_str());
        if source.join(&config).is_file() {
            unfinished.copy(source, &config)?;
        }
    }
    Ok(())
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
