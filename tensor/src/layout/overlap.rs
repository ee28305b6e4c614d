//! Whether two indices of a layout name the same element.

use super::{Layout, MAX_RANK};

/// Steps after which the search gives up. Layouts that views make need a few; it is for those made by hand, of which a
/// hostile one could keep it busy for years.
const MOST_STEPS: u32 = 1 << 14;

impl Layout {
    /// Whether two indices name the same element: by a stride of 0, an unfold, or strides chosen so.
    ///
    /// Exact, but for layouts made by hand with so many near misses that finding out would take longer than their use:
    /// of these it says `true`.
    ///
    /// ```
    /// use sinew_tensor::Layout;
    /// let row = Layout::contiguous(&[6])?;
    /// assert!(!row.unfold(0, 2, 2)?.overlaps());
    /// assert!(row.unfold(0, 3, 2)?.overlaps());
    /// # Ok::<(), sinew_tensor::Error>(())
    /// ```
    pub fn overlaps(&self) -> bool {
        if self.elements() <= 1 {
            return false;
        }
        let mut all = [(0, 0); MAX_RANK];
        let mut count = 0;
        for (&size, &stride) in self.shape().iter().zip(self.strides()) {
            if size > 1 {
                all[count] = (stride, size);
                count += 1;
            }
        }
        let dims = &mut all[..count];
        dims.sort_unstable();
        // Strides that each step over all that the smaller ones reach keep indices apart: so it is nearly always.
        let mut reach = 0;
        let apart = dims.iter().all(|&(stride, size)| {
            let steps_over = stride > reach;
            reach += (size - 1) * stride;
            steps_over
        });
        if apart {
            return false;
        }
        dims.reverse();
        let mut steps = MOST_STEPS;
        dims.last().is_some_and(|&(stride, _)| stride == 0) || cancels(dims, 0, false, &mut steps)
    }
}

/// Whether steps along `dims` (strides and sizes, from the largest stride down, none 0) can add up to `-sum`, not all
/// of them 0 if none `moved` before. Two indices name the same element where their difference adds up to 0.
fn cancels(dims: &[(usize, usize)], sum: isize, moved: bool, steps: &mut u32) -> bool {
    let Some((&(stride, size), rest)) = dims.split_first() else {
        return sum == 0 && moved;
    };
    let (stride, most) = (stride as isize, size as isize - 1);
    // The strides that are left must be able to bring the sum back to 0.
    let reach: isize = rest.iter().map(|&(stride, size)| (stride * (size - 1)) as isize).sum();
    let low = (-sum - reach).div_euclid(stride) + isize::from((-sum - reach).rem_euclid(stride) != 0);
    let high = (reach - sum).div_euclid(stride).min(most);
    // Differences come in pairs of opposite signs: the first step forward is enough.
    let low = low.max(if moved { -most } else { 0 });
    for step in low..=high {
        *steps = steps.saturating_sub(1);
        if *steps == 0 || cancels(rest, sum + step * stride, moved || step != 0, steps) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_overlap_only_where_a_step_is_shorter_than_they_are() {
        let layout = Layout::contiguous(&[4, 30]).unwrap();
        assert!(!layout.overlaps());
        for (size, step, every, shared) in
            [(3, 3, 1, false), (3, 2, 1, true), (5, 3, 2, false), (7, 3, 2, true), (4, 3, 2, false), (1, 1, 1, false)]
        {
            let windows = layout.unfold(1, size, step).unwrap().slice(2, 0..size, every).unwrap();
            let first_two = windows.narrow(1, 0, 2).unwrap();
            let elements: std::collections::HashSet<usize> = windows.indices().collect();
            assert_eq!(windows.overlaps(), elements.len() < windows.elements(), "{windows:?}");
            assert_eq!(windows.overlaps(), shared, "{windows:?}");
            assert!(!first_two.overlaps() || shared);
        }
    }

    #[test]
    fn layouts_too_hard_to_search_are_said_to_overlap() {
        // 59^6 differences over a range of 2^50: whether two meet takes a search of most of them.
        let strides = [1 << 50, 989_560_464_998_113, 861_083_529_478_001, 702_913_418_200_759, 577_215_664_901_533, 31];
        let layout = Layout::strided(&[30; 6], &strides, 0).unwrap();
        let start = std::time::Instant::now();
        assert!(layout.overlaps());
        assert!(start.elapsed().as_millis() < 1000, "the search gives up");
    }

    #[test]
    fn strides_may_interleave_without_meeting() {
        assert!(!Layout::strided(&[2, 2], &[2, 3], 0).unwrap().overlaps());
        assert!(Layout::strided(&[4, 3], &[2, 3], 0).unwrap().overlaps());
        assert!(!Layout::strided(&[1, 5], &[0, 1], 0).unwrap().overlaps());
        assert!(!Layout::strided(&[2, 0], &[0, 0], 3).unwrap().overlaps());
    }
}
