//! The index of a checkpoint in several files: which file has which tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::safetensors::{MAX_HEADER_BYTES, Unique};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::files::{self, INDEX};
use crate::json;

/// The longest index that is read: it costs several times its size to parse as a header does, and has the same names.
pub(crate) const MAX_INDEX_BYTES: u64 = MAX_HEADER_BYTES;

/// The text of an index.
pub(super) fn read_index(path: &Path) -> Result<String> {
    files::read_within(path, MAX_INDEX_BYTES)
}

/// The shard of each tensor, from the text of an index.
pub(super) fn weight_map(text: &str, file: &str) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Option<Unique<String>>,
    }
    let index: Index = json::parse_as(text).map_err(|source| match source.is_data() {
        true => Error::Config {
            file: file.to_owned(),
            problem: format!("`weight_map` must have the file of each tensor: {source}"),
        },
        false => Error::Json { file: file.to_owned(), source },
    })?;
    let missing = || Error::Config { file: file.to_owned(), problem: "`weight_map` is missing".to_owned() };
    Ok(index.weight_map.ok_or_else(missing)?.0)
}

/// The shards that the index in `folder` names, each once.
pub(crate) fn shards_of_index(folder: &Path) -> Result<BTreeSet<String>> {
    let path = folder.join(INDEX);
    let file = path.display().to_string();
    let shards: BTreeSet<String> = weight_map(&read_index(&path)?, &file)?.into_values().collect();
    for shard in &shards {
        files::join_inside(folder, shard, &file)?;
    }
    Ok(shards)
}
