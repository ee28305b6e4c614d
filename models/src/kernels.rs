//! Which rows of the table of operators serve a model, by the name of the place where they do.

/// A place, and the rows chosen there for one row of input and for many.
pub(crate) type Place = (&'static str, Vec<&'static str>);

/// Adds the places of layers, of which most have the same rows, each as often as it has others.
pub(crate) fn push_unlike(all: &mut Vec<Place>, places: impl Iterator<Item = Place>) {
    for place in places {
        if !all.contains(&place) {
            all.push(place);
        }
    }
}
