//! Where the parts of a call's workspace lie.
//!
//! ```text
//! slabs' list | packed rows | worker 0's block of a unit's panels, and sums | worker 1's | …
//! ```

use super::Shape;
use super::k_blocks::KBlocks;
use super::slabs::{Slab, Slabs};
use super::tasks::Tasks;
use crate::cpu::whole_lines;
use crate::packed::PANEL;

/// Bytes of each part, in whole cache lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workspace {
    /// Of the list of slabs that are packed at a time.
    pub list: usize,
    /// Of their packed rows.
    pub rows: usize,
    /// Of a worker: its panels, where it packs or expands any, and behind them its sums.
    pub worker: usize,
    /// The panels' part of that.
    pub panels: usize,
    /// Workers.
    threads: usize,
}

impl Workspace {
    /// That of a plan for so many threads.
    pub fn new(shape: &Shape, slabs: &Slabs, tasks: &Tasks, blocks: &KBlocks, threads: usize) -> Self {
        let panels = blocks.panel_bytes.saturating_mul(tasks.unit);
        let sums = blocks.sum_rows.saturating_mul(PANEL * size_of::<f32>());
        Self {
            list: whole_lines(slabs.most.saturating_mul(size_of::<Slab>())),
            rows: whole_lines(shape.row_bytes.saturating_mul(slabs.rows).saturating_mul(slabs.together)),
            worker: whole_lines(panels.saturating_add(sums)),
            panels,
            threads,
        }
    }

    /// All of them; where that is more than can be counted, the most, which nothing has room for.
    pub fn bytes(&self) -> usize {
        let workers = self.worker.saturating_mul(self.threads);
        self.list.saturating_add(self.rows).saturating_add(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::PanelKind;

    fn workspace(row_bytes: usize, threads: usize) -> Workspace {
        let kind = PanelKind::F32;
        let shape = Shape { rights: 1, rows: 30, padded: 10, panels: 8, kind, unpacked: true, tile: 6, row_bytes };
        let blocks = KBlocks { len: 5, few_rows: false, panel_bytes: 640, sum_rows: 48 };
        let slabs = Slabs { widest: 12, rows: 12, together: 2, most: 3 };
        Workspace::new(&shape, &slabs, &Tasks { unit: 4, units: 1 }, &blocks, threads)
    }

    #[test]
    fn parts_are_whole_lines_and_every_worker_has_its_own() {
        let one = workspace(40, 1);
        assert_eq!((one.rows, one.panels, one.worker), (960, 2560, 2560 + 48 * 128));
        assert!([one.list, one.rows, one.worker].into_iter().all(|bytes| bytes.is_multiple_of(64)));
        assert!(one.list >= 3 * size_of::<Slab>());
        assert_eq!(workspace(40, 3).bytes(), one.bytes() + 2 * one.worker);
    }

    #[test]
    fn more_than_can_be_counted_is_the_most() {
        assert_eq!([workspace(usize::MAX, 2), workspace(40, usize::MAX)].map(|most| most.bytes()), [usize::MAX; 2]);
    }
}
