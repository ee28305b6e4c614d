//! What live buffers are for.

use std::collections::HashMap;
use std::sync::Arc;

use super::TagUsage;

/// Above this many tags, one without live buffers makes room for a new one.
const KEPT: usize = 256;

/// Live buffers and their bytes, counted by names. A name has its number for as long as it has buffers; 0 is that of
/// buffers without one.
pub(super) struct Tags {
    tags: Vec<Tag>,
    ids: HashMap<Arc<str>, u32>,
}

struct Tag {
    name: Arc<str>,
    buffers: usize,
    bytes: usize,
}

impl Tags {
    pub fn new() -> Self {
        Self { tags: vec![Tag { name: "untagged".into(), buffers: 0, bytes: 0 }], ids: HashMap::new() }
    }

    /// Counts a buffer, and gives the number of its tag.
    pub fn add(&mut self, name: &str, bytes: usize) -> u32 {
        let id = if name.is_empty() { 0 } else { self.id(name) };
        let tag = &mut self.tags[id as usize];
        tag.buffers += 1;
        tag.bytes += bytes;
        id
    }

    /// A buffer that was counted is gone.
    pub fn remove(&mut self, id: u32, bytes: usize) {
        let tag = &mut self.tags[id as usize];
        tag.buffers -= 1;
        tag.bytes -= bytes;
    }

    fn id(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let name: Arc<str> = name.into();
        let mut id = self.tags.len();
        if id >= KEPT
            && let Some(unused) = (1..id).find(|&i| self.tags[i].buffers == 0)
        {
            self.ids.remove(&self.tags[unused].name);
            self.tags[unused].name = name.clone();
            id = unused;
        } else {
            self.tags.push(Tag { name: name.clone(), buffers: 0, bytes: 0 });
        }
        self.ids.insert(name, id as u32);
        id as u32
    }

    /// Those that have buffers, the largest first.
    pub fn live(&self) -> Vec<TagUsage> {
        let used = self.tags.iter().filter(|tag| tag.buffers > 0);
        let usage = |tag: &Tag| TagUsage { tag: tag.name.to_string(), buffers: tag.buffers, bytes: tag.bytes };
        let mut live: Vec<_> = used.map(usage).collect();
        live.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.tag.cmp(&b.tag)));
        live
    }
}
