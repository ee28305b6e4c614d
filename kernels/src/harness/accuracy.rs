//! The accuracy harness: every row against its operator's f64 reference, and against the other rows of its arithmetic.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use sinew_memory::{Buffer, Device, DeviceKind, Hardware, Stream};
use sinew_tensor::{Tensor, View, ViewMut};

use crate::Result;
use crate::harness::case::{Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values, decode};
use crate::harness::suite::{AnySuite, Suite};
use crate::operator::{Arithmetic, Launch, Operands, Row, Work};
use crate::table::of_kind;

/// What the harness found for one row.
#[derive(Clone, Debug)]
pub struct RowReport {
    /// The operator.
    pub operator: &'static str,
    /// The row.
    pub row: &'static str,
    /// Its arithmetic.
    pub arithmetic: &'static str,
    /// Cases that it admitted and ran.
    pub cases: usize,
    /// Elements compared with the reference.
    pub elements: usize,
    /// Cases compared bit for bit with another row of its arithmetic.
    pub compared: usize,
    /// The largest share of the allowed error that any element used.
    pub worst: f64,
    /// A hash of all that the row wrote, over its cases in order: two builds that print the same one agree to the bit,
    /// NaNs aside, of which a compiler may exchange one for another.
    pub hash: u64,
    /// What was wrong, one line each; the first few.
    pub failures: Vec<String>,
    /// What the hardware lacks, where that is why the row took no case.
    pub lacks: Option<String>,
}

impl RowReport {
    /// Of a row that has run no case.
    fn empty(operator: &'static str, (row, arithmetic): (&'static str, Arithmetic)) -> Self {
        Self {
            operator,
            row,
            arithmetic: arithmetic.name,
            cases: 0,
            elements: 0,
            compared: 0,
            worst: 0.0,
            hash: 0,
            failures: Vec::new(),
            lacks: None,
        }
    }

    /// Whether the row was wrong, or took no case though the hardware lacks nothing.
    pub fn fails(&self) -> bool {
        !self.failures.is_empty() || self.lacks.is_none() && (self.cases == 0 || self.elements == 0)
    }
}

/// A row and a case, ready to be timed.
pub struct Run {
    /// The operator.
    pub operator: &'static str,
    /// The row.
    pub row: &'static str,
    /// The case, in words.
    pub case: String,
    /// Its work.
    pub work: Work,
    /// Where it runs.
    pub stream: Arc<dyn Stream>,
    /// Enqueues it once.
    pub enqueue: Box<dyn FnMut() -> Result<()>>,
}

impl Run {
    /// A row with a case, operands on the stream's device.
    ///
    /// # Errors
    /// Operands that cannot be made.
    pub fn new<O: Reference>(row: &Row<O>, case: &Case<O>, stream: &Arc<dyn Stream>) -> Result<Self> {
        Self::of(Arc::new(Suite { rows: vec![*row], cases: vec![case.clone()] }), 0, 0, stream)
    }

    fn of(suite: Arc<dyn AnySuite>, row: usize, case: usize, stream: &Arc<dyn Stream>) -> Result<Self> {
        let mut placed = OnDevice::new(&*suite, row, case, &suite.operands(case)?, stream)?;
        Ok(Self {
            operator: suite.operator(),
            row: suite.row(row).0,
            case: suite.text(case),
            work: suite.work(case),
            stream: stream.clone(),
            enqueue: {
                let on = stream.clone();
                Box::new(move || placed.enqueue(&*suite, row, case, &on))
            },
        })
    }

    /// Runs it once and waits.
    ///
    /// # Errors
    /// What the kernel or the device reports.
    pub fn run(&mut self) -> Result<()> {
        (self.enqueue)()?;
        Ok(self.stream.synchronize()?)
    }
}

/// Elements of each output that are compared with the reference: all where there are so few, else a sample.
const SAMPLE: usize = 256;
/// Failures kept per row.
const KEPT_FAILURES: usize = 5;
/// Cases whose operands are made ahead.
const AHEAD: usize = 4;

/// A case's operands on a device.
struct OnDevice {
    inputs: Vec<Option<Tensor>>,
    outputs: Vec<Tensor>,
    workspace: Option<Buffer>,
}

pub(crate) fn place(stream: &Arc<dyn Stream>, tensor: &Tensor) -> Result<Tensor> {
    let device = stream.device();
    let bytes = tensor.buffer().as_slice::<u8>()?;
    let mut buffer = Buffer::uninitialised(device, bytes.len())?;
    stream.upload(bytes, &mut buffer, 0)?;
    Ok(Tensor::new(buffer, tensor.dtype(), *tensor.layout())?)
}

impl OnDevice {
    fn new(
        suite: &dyn AnySuite,
        row: usize,
        case: usize,
        host: &HostOperands,
        stream: &Arc<dyn Stream>,
    ) -> Result<Self> {
        let inputs = host
            .inputs
            .iter()
            .map(|o| o.as_ref().map(|o| place(stream, &o.tensor)).transpose())
            .collect::<Result<_>>()?;
        let outputs = host.outputs.iter().map(|o| place(stream, &o.tensor)).collect::<Result<_>>()?;
        let needed = suite.workspace(row, case, stream.device().hardware());
        let workspace = (needed > 0).then(|| Buffer::uninitialised(stream.device(), needed)).transpose()?;
        Ok(Self { inputs, outputs, workspace })
    }

    fn enqueue(&mut self, suite: &dyn AnySuite, row: usize, case: usize, stream: &Arc<dyn Stream>) -> Result<()> {
        let inputs: Vec<Option<View<'_>>> = self.inputs.iter().map(|t| t.as_ref().map(Tensor::view)).collect();
        let outputs: Vec<ViewMut<'_>> =
            self.outputs.iter_mut().map(Tensor::view_mut).collect::<Result<_, sinew_tensor::Error>>()?;
        let launch = Launch::new(stream, self.workspace.as_mut())?;
        suite.launch(row, case, &launch, Operands { inputs: &inputs, outputs: &outputs })
    }

    /// All bytes of each output's buffer.
    fn output_bytes(&self, stream: &Arc<dyn Stream>) -> Result<Vec<Vec<u8>>> {
        self.outputs
            .iter()
            .map(|t| {
                let mut bytes = vec![0; t.buffer().len()];
                stream.download(t.buffer(), 0, &mut bytes)?;
                Ok(bytes)
            })
            .collect()
    }
}

/// Checks each of these rows that runs on `device`. See [`crate::AnyTable::verify`].
pub fn verify<O: Reference>(rows: &[Row<O>], device: &Arc<dyn Device>, depth: Depth) -> Vec<RowReport> {
    verify_suite(&Suite { rows: of_kind(rows, device.id().kind), cases: O::cases(depth) }, device)
}

/// Devices on which every row has passed the harness: the kind, and how the device's name begins. The run is kept under
/// that beginning in `benches/results/`.
const ON_RECORD: [(DeviceKind, &str); 1] = [(DeviceKind::WGPU, "llvmpipe")];
/// Cases of a self-check: enough to see a driver that miscompiles, few enough to be done before a model runs.
const SELF_CHECK_CASES: usize = 8;

/// Whether a GPU's rows have to check themselves there before they are used: no recorded run has shown them right.
pub fn is_unconfirmed(hardware: &Hardware) -> bool {
    let gpu = [DeviceKind::CUDA, DeviceKind::WGPU].contains(&hardware.kind);
    gpu && !ON_RECORD.iter().any(|(kind, name)| *kind == hardware.kind && hardware.name.starts_with(name))
}

/// Runs a few cases of a row on a device. See [`crate::Registry::self_check`].
pub(crate) fn self_check<O: Reference>(row: &Row<O>, device: &Arc<dyn Device>) -> std::result::Result<(), String> {
    check_some(&Suite { rows: vec![*row], cases: O::cases(Depth::Quick) }, device)
}

/// What is wrong with the first row of a suite in a few of the cases that it takes.
fn check_some(suite: &dyn AnySuite, device: &Arc<dyn Device>) -> std::result::Result<(), String> {
    let admitted: Vec<usize> =
        (0..suite.cases()).filter(|&case| suite.admits(0, case, device.hardware()).is_ok()).collect();
    let step = admitted.len().div_ceil(SELF_CHECK_CASES).max(1);
    outcome(suite, admitted.into_iter().step_by(step).collect(), device)
}

/// Bytes of a problem's operands up to which it is checked as it is: making and uploading operands of a model's size
/// takes longer than the model's own load.
const CHECKED_BYTES: f64 = (8 << 20) as f64;

/// Runs a row on the problem that it is to solve. See [`crate::Registry::check_problem`].
pub(crate) fn check_problem<O: Reference>(
    row: &Row<O>,
    fixed: &O::Static,
    call: O::Dynamic,
    device: &Arc<dyn Device>,
) -> std::result::Result<(), String> {
    let large = O::work(fixed, &call).bytes > CHECKED_BYTES;
    let problem = if large { O::smaller(fixed, call) } else { Some((fixed.clone(), call)) };
    let Some((fixed, call)) = problem else { return Ok(()) };
    if O::work(&fixed, &call).bytes == 0.0 || (row.admits)(&fixed, device.hardware()).is_err() {
        return Ok(());
    }
    let case = Case { fixed, call, lay: Lay::Contiguous, values: Values::Normal, seed: 0 };
    outcome(&Suite { rows: vec![*row], cases: vec![case] }, vec![0], device)
}

/// What is wrong with the first row of a suite in some of its cases.
fn outcome(suite: &dyn AnySuite, cases: Vec<usize>, device: &Arc<dyn Device>) -> std::result::Result<(), String> {
    match verify_cases(suite, cases, device).into_iter().next() {
        Some(RowReport { failures, .. }) if !failures.is_empty() => Err(failures[0].clone()),
        Some(RowReport { cases: 1.., .. }) => Ok(()),
        Some(RowReport { row, operator, .. }) => Err(format!("no case of {operator} is one that {row} takes")),
        None => Err(format!("{} has no row to check", suite.operator())),
    }
}

/// Runs a case with each row of those that run on `device`, also where a row refuses it: a refusal is a failure.
pub(crate) fn try_case(suite: &dyn AnySuite, device: &Arc<dyn Device>) -> Vec<RowReport> {
    let mut reports = verify_suite(suite, device);
    for (row, report) in reports.iter_mut().enumerate().filter(|(_, report)| report.cases == 0) {
        report.lacks = None;
        let launch = || -> Result<()> {
            let stream = device.clone().stream()?;
            let mut placed = OnDevice::new(suite, row, 0, &suite.operands(0)?, &stream)?;
            placed.enqueue(suite, row, 0, &stream)?;
            Ok(stream.synchronize()?)
        };
        if let Err(error) = launch() {
            fail(report, error.to_string());
        }
    }
    reports
}

/// Runs every case with every row that takes it.
fn verify_suite(suite: &dyn AnySuite, device: &Arc<dyn Device>) -> Vec<RowReport> {
    verify_cases(suite, (0..suite.cases()).collect(), device)
}

/// Runs some of the cases with every row that takes them.
fn verify_cases(suite: &dyn AnySuite, cases: Vec<usize>, device: &Arc<dyn Device>) -> Vec<RowReport> {
    let mut reports: Vec<RowReport> =
        (0..suite.rows()).map(|row| RowReport::empty(suite.operator(), suite.row(row))).collect();
    let stream = match device.clone().stream() {
        Ok(stream) => stream,
        Err(error) => {
            reports.iter_mut().for_each(|r| r.failures.push(error.to_string()));
            return reports;
        }
    };
    thread::scope(|scope| {
        // Operands are made while rows run on those before: that takes a third of the time.
        let (made, operands) = sync_channel(AHEAD);
        scope.spawn(move || {
            for case in cases {
                if made.send((case, suite.operands(case))).is_err() {
                    break;
                }
            }
        });
        for (case, host) in operands {
            match host {
                Ok(host) => verify_case(suite, &mut reports, case, &host, &stream),
                Err(error) => {
                    let text = suite.text(case);
                    reports.iter_mut().for_each(|r| r.failures.push(format!("{text}: {error}")));
                }
            }
        }
    });
    reports
}

/// What a row gave, and how it compares with the reference.
struct Given {
    arithmetic: Arithmetic,
    row: &'static str,
    bytes: Vec<Vec<u8>>,
    elements: usize,
    worst: f64,
}

/// Runs a case with each of the rows that take it.
fn verify_case(
    suite: &dyn AnySuite,
    reports: &mut [RowReport],
    case: usize,
    host: &HostOperands,
    stream: &Arc<dyn Stream>,
) {
    let mut given: Vec<Given> = Vec::new();
    for (row, report) in reports.iter_mut().enumerate() {
        let (name, arithmetic) = suite.row(row);
        if let Err(refusal) = suite.admits(row, case, stream.device().hardware()) {
            if refusal.is_of_hardware() && report.cases == 0 {
                report.lacks = Some(refusal.to_string());
            }
            continue;
        }
        report.cases += 1;
        report.lacks = None;
        let outcome = (|| {
            let mut on_device = OnDevice::new(suite, row, case, host, stream)?;
            on_device.enqueue(suite, row, case, stream)?;
            stream.synchronize()?;
            on_device.output_bytes(stream)
        })();
        let bytes = match outcome {
            Ok(bytes) => bytes,
            Err(error) => {
                fail(report, format!("{}: {error}", suite.text(case)));
                continue;
            }
        };
        report.hash = hash_of(report.hash, host, &bytes);
        let alike = given.iter().find(|given| !arithmetic.foreign && given.arithmetic == arithmetic);
        if let Some(alike) = alike {
            report.compared += 1;
            let bound_alike = alike.arithmetic.flushes_subnormals == arithmetic.flushes_subnormals;
            if bound_alike && alike.bytes == bytes {
                // The reference has been asked about these bytes.
                report.elements += alike.elements;
                report.worst = report.worst.max(alike.worst);
                continue;
            }
            if !same_bits(host, &alike.bytes, &bytes) {
                let text = suite.text(case);
                fail(report, format!("{text}: bits differ from {}, which has the same arithmetic", alike.row));
            }
        }
        let mut of_case = RowReport::empty(suite.operator(), (name, arithmetic));
        compare_with_reference(&mut of_case, suite, case, host, arithmetic, &bytes);
        report.elements += of_case.elements;
        report.worst = report.worst.max(of_case.worst);
        if of_case.failures.is_empty() {
            let RowReport { elements, worst, .. } = of_case;
            given.push(Given { arithmetic, row: name, bytes, elements, worst });
        }
        of_case.failures.into_iter().for_each(|line| fail(report, line));
    }
}

/// The hash of what a row wrote in the cases before and in this one: all NaNs count as one.
fn hash_of(before: u64, host: &HostOperands, bytes: &[Vec<u8>]) -> u64 {
    let mut hasher = DefaultHasher::new();
    before.hash(&mut hasher);
    for (output, bytes) in host.outputs.iter().zip(bytes) {
        for value in decode(output.tensor.dtype(), bytes) {
            if value.is_nan() { f64::NAN } else { value }.to_bits().hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn fail(report: &mut RowReport, line: String) {
    if report.failures.len() < KEPT_FAILURES {
        report.failures.push(line);
    }
}

/// The same bytes, but that NaNs may differ in sign and payload.
fn same_bits(host: &HostOperands, a: &[Vec<u8>], b: &[Vec<u8>]) -> bool {
    host.outputs.iter().zip(a.iter().zip(b)).all(|(output, (a, b))| {
        a == b || {
            let (a, b) = (decode(output.tensor.dtype(), a), decode(output.tensor.dtype(), b));
            a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()))
        }
    })
}

fn compare_with_reference(
    report: &mut RowReport,
    suite: &dyn AnySuite,
    case: usize,
    host: &HostOperands,
    arithmetic: Arithmetic,
    bytes: &[Vec<u8>],
) {
    for (o, output) in host.outputs.iter().enumerate() {
        let dtype = output.tensor.dtype();
        let layout = output.tensor.layout();
        let flat = decode(dtype, &bytes[o]);
        let got: Vec<f64> = layout.indices().map(|at| flat[at]).collect();
        let got = suite.logical(case, o, &got).unwrap_or(got);
        let elements = got.len();
        let mut pick = Generator::new(suite.values(case).1 ^ 0x5eed);
        // The last element is always in the sample: that is where ragged tails go wrong.
        let chosen: Vec<usize> = if elements <= SAMPLE {
            (0..elements).collect()
        } else {
            (0..SAMPLE - 1).map(|_| pick.below(elements)).chain([elements - 1]).collect()
        };
        let mut index = vec![0; output.shape.len()];
        let mut found: Vec<(Vec<usize>, f64, Expected)> = Vec::with_capacity(chosen.len());
        for flat in chosen {
            let mut rest = flat;
            for d in (0..index.len()).rev() {
                index[d] = rest % output.shape[d];
                rest /= output.shape[d];
            }
            found.push((index.clone(), got[flat], suite.expect(case, host, arithmetic, o, &index)));
        }
        let naive =
            found.iter().map(|(_, _, e)| (e.naive - e.value).abs()).filter(|e| e.is_finite()).fold(0.0, f64::max);
        for (index, got, expected) in found {
            report.elements += 1;
            let value = expected.value;
            let allowed = expected.bound + 2.0 * naive;
            let error = (got - value).abs();
            let good = if expected.not_finite {
                !got.is_finite()
            } else if value.is_nan() {
                got.is_nan()
            } else if value.is_infinite() || got.is_infinite() {
                // Rounding may carry a value at the edge of the output's range either way.
                got == value || dtype.round(value) == got || (dtype.round(value).is_infinite() && error <= allowed)
            } else {
                error <= allowed
            };
            if good {
                if error > 0.0 && error.is_finite() && allowed > 0.0 {
                    report.worst = report.worst.max(error / allowed);
                }
            } else {
                let text = suite.text(case);
                let line =
                    format!("{text}: output {o} at {index:?} is {got:e}, reference {value:e}, allowed {allowed:e}");
                fail(report, line);
            }
        }
        // Nothing outside the view may have been touched.
        let mut named = vec![false; bytes[o].len() / dtype.size()];
        layout.indices().for_each(|at| named[at] = true);
        let before = output.tensor.buffer().as_slice::<u8>().unwrap_or_default();
        let size = dtype.size();
        let spilled = named
            .iter()
            .enumerate()
            .find(|&(at, &named)| !named && before[at * size..(at + 1) * size] != bytes[o][at * size..(at + 1) * size]);
        if let Some((at, _)) = spilled {
            let text = suite.text(case);
            fail(report, format!("{text}: output {o} was written outside its view, at element {at} of the buffer"));
        }
    }
}

/// Each of these rows with every case of normal values that it takes on `device`, ready to be timed. See
/// [`crate::AnyTable::runs`].
pub fn runs<O: Reference>(rows: &[Row<O>], device: &Arc<dyn Device>, depth: Depth) -> Result<Vec<Run>> {
    runs_of(Arc::new(Suite { rows: of_kind(rows, device.id().kind), cases: O::cases(depth) }), device)
}

fn runs_of(suite: Arc<dyn AnySuite>, device: &Arc<dyn Device>) -> Result<Vec<Run>> {
    let stream = device.clone().stream()?;
    let mut runs = Vec::new();
    for case in (0..suite.cases()).filter(|&case| suite.values(case).0 == Values::Normal) {
        for row in 0..suite.rows() {
            if suite.admits(row, case, device.hardware()).is_ok() {
                runs.push(Run::of(suite.clone(), row, case, &stream)?);
            }
        }
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::ON_RECORD;

    #[test]
    fn the_run_of_every_device_on_record_is_kept_and_passed() {
        for (kind, name) in ON_RECORD {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/results").join(format!("{name}.txt"));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let device = format!("{kind}:0: {name}");
            assert!(text.lines().any(|line| line.starts_with(&device)), "{}", path.display());
            assert!(text.lines().any(|line| line.starts_with("0 of ") && line.ends_with(" rows failed")));
            assert!(!text.contains("FAILED"), "{}", path.display());
        }
    }
}
