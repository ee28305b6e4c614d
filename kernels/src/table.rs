//! Tables of rows.

use sinew_memory::{DeviceKind, Hardware};

use crate::operator::{Operator, Refusal, Row};

/// The rows of one operator.
///
/// Its functions are plain loops, as they are compiled for each operator.
#[derive(Clone, Debug)]
pub struct Table<O: Operator> {
    pub(crate) rows: Vec<Row<O>>,
}

/// Returns the kernels of one kind of device.
pub(crate) fn of_kind<O: Operator>(rows: &[Row<O>], kind: DeviceKind) -> Vec<Row<O>> {
    let mut of_kind = Vec::with_capacity(rows.len());
    for row in rows {
        if row.device == kind {
            of_kind.push(*row);
        }
    }
    of_kind
}

/// The rows of lists, one after another.
pub(crate) fn joined<O: Operator>(lists: &mut [Vec<Row<O>>]) -> Vec<Row<O>> {
    let mut all = Vec::new();
    for rows in lists {
        all.append(rows);
    }
    all
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
    pub(crate) fn of(&self, hardware: &Hardware) -> Vec<Row<O>> {
        of_kind(&self.rows, hardware.kind)
    }

    /// Whether a row takes a problem on this hardware.
    pub(crate) fn takes(&self, fixed: &O::Static, hardware: &Hardware) -> bool {
        !self.taking(fixed, hardware).is_empty()
    }

    /// The rows that take a problem on this hardware.
    pub(crate) fn taking(&self, fixed: &O::Static, hardware: &Hardware) -> Vec<Row<O>> {
        let mut taking = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            if row.device == hardware.kind && (row.admits)(fixed, hardware).is_ok() {
                taking.push(*row);
            }
        }
        taking
    }

    /// The rows that take a problem on this hardware, and why the others of this kind of device do not.
    pub fn candidates(&self, fixed: &O::Static, hardware: &Hardware) -> (Vec<&Row<O>>, Vec<(&'static str, Refusal)>) {
        let mut admitted = Vec::new();
        let mut refused = Vec::new();
        for row in &self.rows {
            if row.device != hardware.kind {
                continue;
            }
            match (row.admits)(fixed, hardware) {
                Ok(()) => admitted.push(row),
                Err(reason) => refused.push((row.name, reason)),
            }
        }
        (admitted, refused)
    }
}
