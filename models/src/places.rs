//! Which rows of the table of operators serve a model, by the name of the place where they do.

use sinew_ops::layers::Place;

/// Adds the places of layers, of which most have the same rows, each as often as it has others.
pub(crate) fn push_unlike(all: &mut Vec<Place>, places: impl Iterator<Item = Place>) {
    for place in places {
        if !all.contains(&place) {
            all.push(place);
        }
    }
}
