//! Bind groups, kept over steps by what they bind.

use std::collections::HashMap;

/// A range of a storage: its number, first byte and bytes.
pub(super) type Slot = (u64, u64, u64);

/// Bind groups at most: a program whose operands move about forever starts over.
const MOST: usize = 8192;

#[derive(Debug, Default)]
pub(super) struct Groups {
    made: HashMap<Box<[Slot]>, wgpu::BindGroup>,
    /// The groups of each storage.
    of: HashMap<u64, Vec<Box<[Slot]>>>,
}

impl Groups {
    pub(super) fn get(&self, slots: &[Slot]) -> Option<wgpu::BindGroup> {
        self.made.get(slots).cloned()
    }

    pub(super) fn insert(&mut self, slots: &[Slot], group: wgpu::BindGroup) {
        if self.made.len() == MOST {
            *self = Self::default();
        }
        for &(storage, ..) in slots {
            self.of.entry(storage).or_default().push(slots.into());
        }
        self.made.insert(slots.into(), group);
    }

    /// Drops the groups of a storage.
    pub(super) fn forget(&mut self, storage: u64) {
        for slots in self.of.remove(&storage).into_iter().flatten() {
            if self.made.remove(&slots).is_some() {
                for other in slots.iter().map(|slot| slot.0).filter(|&other| other != storage) {
                    if let Some(groups) = self.of.get_mut(&other) {
                        groups.retain(|group| *group != slots);
                    }
                }
            }
        }
    }
}
