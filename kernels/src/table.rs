//! Tables of rows.

use sinew_memory::Hardware;

use crate::operator::{Operator, Refusal, Row};

/// The rows of one operator.
#[derive(Clone, Debug)]
pub struct Table<O: Operator> {
    pub(crate) rows: Vec<Row<O>>,
}

impl<O: Operator> Table<O> {
    /// A table of these rows.
    pub fn new(rows: impl Into<Vec<Row<O>>>) -> Self {
        Self { rows: rows.into() }
    }

    /// Every row, in the order added.
    pub fn rows(&self) -> &[Row<O>] {
        &self.rows
    }

    /// The rows of a kind of device.
    pub(crate) fn of<'t>(&'t self, hardware: &Hardware) -> impl Iterator<Item = &'t Row<O>> {
        let kind = hardware.kind;
        self.rows.iter().filter(move |row| row.device == kind)
    }

    /// Whether a row takes a problem on this hardware.
    pub(crate) fn takes(&self, fixed: &O::Static, hardware: &Hardware) -> bool {
        self.of(hardware).any(|row| (row.admits)(fixed, hardware).is_ok())
    }

    /// The rows that take a problem on this hardware, and why the others of this kind of device do not.
    pub fn candidates(&self, fixed: &O::Static, hardware: &Hardware) -> (Vec<&Row<O>>, Vec<(&'static str, Refusal)>) {
        let mut admitted = Vec::new();
        let mut refused = Vec::new();
        for row in self.of(hardware) {
            match (row.admits)(fixed, hardware) {
                Ok(()) => admitted.push(row),
                Err(reason) => refused.push((row.name, reason)),
            }
        }
        (admitted, refused)
    }
}
