//! Names that are alike, for whoever asks for a tensor or a setting that is not there.

/// How many similar names an error lists.
const NEAREST: usize = 3;
/// Of how many names the distance is computed, those that a cheaper measure finds most similar.
const COMPARED: usize = 256;

/// The names most like `name`, the nearest first.
pub(crate) fn nearest<'a>(name: &str, names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut candidates: Vec<(usize, &String)> = names.map(|other| (most_edits(name, other), other)).collect();
    if candidates.len() > COMPARED {
        candidates.select_nth_unstable(COMPARED);
        candidates.truncate(COMPARED);
    }
    let mut by_distance: Vec<(usize, &String)> =
        candidates.into_iter().map(|(_, other)| (edit_distance(name, other), other)).collect();
    by_distance.sort();
    by_distance.into_iter().take(NEAREST).map(|(_, other)| other.clone()).collect()
}

/// The end of a name, where the layer's parts are: a hostile one may be long, and this bounds what comparing it costs.
fn tail(name: &str) -> &[u8] {
    const MAX_BYTES: usize = 256;
    &name.as_bytes()[name.len().saturating_sub(MAX_BYTES)..]
}

/// No less than the [`edit_distance`], in linear time: everything is edited between what two names begin and end with
/// in common.
fn most_edits(a: &str, b: &str) -> usize {
    let (a, b) = (tail(a), tail(b));
    let same = |(x, y): &(&u8, &u8)| x == y;
    let end = a.iter().rev().zip(b.iter().rev()).take_while(same).count();
    let (a, b) = (&a[..a.len() - end], &b[..b.len() - end]);
    let start = a.iter().zip(b).take_while(same).count();
    a.len().max(b.len()) - start
}

/// Levenshtein's distance in bytes, which serves for the ASCII names of tensors and settings.
pub(crate) fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b) = (tail(a), tail(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_edit_distance_counts_insertions_and_substitutions() {
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("", "ab"), 2);
    }

    proptest! {
        #[test]
        fn a_cheap_measure_is_no_less_than_the_edit_distance(a in "[ab.]{0,8}", b in "[ab.]{0,8}") {
            prop_assert!(most_edits(&a, &b) >= edit_distance(&a, &b));
            prop_assert_eq!(most_edits(&a, &a), 0);
        }

        #[test]
        fn the_edit_distance_is_a_metric(a in "[ab.]{0,8}", b in "[ab.]{0,8}", c in "[ab.]{0,8}") {
            prop_assert_eq!(edit_distance(&a, &b), edit_distance(&b, &a));
            prop_assert_eq!(edit_distance(&a, &b) == 0, a == b);
            prop_assert!(edit_distance(&a, &c) <= edit_distance(&a, &b) + edit_distance(&b, &c));
        }
    }
}
