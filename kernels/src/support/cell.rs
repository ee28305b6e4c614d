//! What a device does with one problem of an operator, asked of the rows themselves.

use std::sync::Arc;

use sinew_memory::{Device, Hardware};
use sinew_tensor::{Tensor, View, ViewMut};

use crate::Result;
use crate::harness::accuracy::{self, RowReport};
use crate::harness::case::{Case, Lay, Reference, Values};
use crate::harness::suite::{AnySuite, Suite};
use crate::operator::Operands;
use crate::support::stored::StoredAs;
use crate::table::Table;

/// What a device does with a problem of an operator whose operand is stored in one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The operator.
    pub operator: &'static str,
    /// How the operand is stored.
    pub stored: StoredAs,
    /// The problem that was asked about; none where the operator has no such operand.
    pub problem: Option<String>,
    /// The rows that take it.
    pub rows: Vec<&'static str>,
    /// Why others do not, or why none can.
    pub refused: Vec<String>,
}

impl Cell {
    /// Whether a row takes the problem.
    pub fn is_supported(&self) -> bool {
        !self.rows.is_empty()
    }
}

/// The case of a cell: with a packed operand in the first format that a row takes, where there is one.
fn case<O: Reference>(table: &Table<O>, stored: StoredAs, hardware: &Hardware) -> Option<Case<O>> {
    let case = |(fixed, call)| Case { fixed, call, lay: Lay::Contiguous, values: Values::Normal, seed: 0 };
    let mut first = None;
    for format in stored.formats() {
        let Some(problem) = O::packed_as(format) else { continue };
        if table.takes(&problem.0, hardware) {
            return Some(case(problem));
        }
        first = first.or(Some(problem));
    }
    first.or_else(|| O::stored_as(stored)).map(case)
}

/// The operator's own check of a case: what is no problem of it is supported by no row, whatever a row says.
fn check(suite: &dyn AnySuite, case: usize) -> Result<()> {
    let mut host = suite.operands(case)?;
    let inputs: Vec<Option<View<'_>>> = host.inputs.iter().map(|o| o.as_ref().map(|o| o.tensor.view())).collect();
    let outputs: Vec<&mut Tensor> = host.outputs.iter_mut().map(|o| &mut o.tensor).collect();
    let outputs = outputs.into_iter().map(Tensor::view_mut).collect::<Result<Vec<ViewMut<'_>>, _>>()?;
    suite.check(case, Operands { inputs: &inputs, outputs: &outputs })
}

/// See [`crate::AnyTable::support`].
pub(crate) fn cells<O: Reference>(table: &Table<O>, hardware: &Hardware) -> Vec<Cell> {
    let mut suite = Suite { rows: table.of(hardware), cases: Vec::new() };
    let mut asked = Vec::new();
    for stored in StoredAs::all() {
        let case = case(table, stored, hardware);
        asked.push((stored, case.is_some()));
        suite.cases.extend(case);
    }
    cells_of(&suite, asked, hardware)
}

/// A cell for each way to store an operand, and whether there is a case of it: a suite has these in order.
fn cells_of(suite: &dyn AnySuite, asked: Vec<(StoredAs, bool)>, hardware: &Hardware) -> Vec<Cell> {
    let mut cases = 0..suite.cases();
    let cell = |(stored, there): (StoredAs, bool)| {
        let operator = suite.operator();
        let none = Cell { operator, stored, problem: None, rows: Vec::new(), refused: Vec::new() };
        let Some(case) = there.then(|| cases.next()).flatten() else { return none };
        let problem = Some(suite.problem(case));
        if let Err(error) = check(suite, case) {
            return Cell { problem, refused: vec![error.to_string()], ..none };
        }
        let (mut rows, mut refused) = (Vec::new(), Vec::new());
        for row in 0..suite.rows() {
            let (name, _) = suite.row(row);
            match suite.admits(row, case, hardware) {
                Ok(()) => rows.push(name),
                Err(reason) => refused.push(format!("{name}: {reason}")),
            }
        }
        if rows.is_empty() && refused.is_empty() {
            refused.push(format!("no row of the table runs on {}", hardware.kind));
        }
        Cell { problem, rows, refused, ..none }
    };
    asked.into_iter().map(cell).collect()
}

/// See [`crate::AnyTable::try_stored`].
pub(crate) fn try_stored<O: Reference>(table: &Table<O>, stored: StoredAs, device: &Arc<dyn Device>) -> Vec<RowReport> {
    let hardware = device.hardware();
    let Some(case) = case(table, stored, hardware) else { return Vec::new() };
    accuracy::try_case(&Suite { rows: table.of(hardware), cases: vec![case] }, device)
}
