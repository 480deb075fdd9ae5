//! `unisono bench`: all-reduce algorithms against each other.

use clap::{Args as ClapArgs, ValueEnum};
#[cfg(feature = "nccl")]
use unisono::Error;
use unisono::bench::{Memory, Row, Settings, measure};
use unisono::select::InvalidChoice;
use unisono::size::bytes;
use unisono::{Algorithm, Choice, Communicator, DType, ReduceOp, Vendor};

use super::Failure;
use super::world::World;

/// What is measured, and how it is shown.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The algorithms, separated by commas; all, auto, mpi and nccl are names too, hierarchical-copy+mpi and rail+nccl and the like,
    /// and rules by size such as "tree:0-8K;ring:8K-"
    #[arg(long, default_value = "all", value_delimiter = ',', value_parser = contenders)]
    algorithm: Vec<Contenders>,
    /// The sizes of the array: from MIN to MAX, FACTOR times as large each time (2 by default); K, M and G
    /// are 2^10, 2^20 and 2^30
    #[arg(long, value_name = "MIN:MAX[:FACTOR]", default_value = "8:16M", value_parser = sizes)]
    bytes: Sizes,
    /// The type of the elements
    #[arg(long, default_value = "f32")]
    dtype: DType,
    /// The reduction
    #[arg(long, default_value = "sum")]
    op: ReduceOp,
    /// The kind of memory that the array is in
    #[arg(long, default_value = "slice")]
    memory: Memory,
    /// A baseline that is measured in the same run, taking turns
    #[arg(long)]
    against: Option<Baseline>,
    /// How often each algorithm is measured at each size; by default as often as is worth while
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// How the rows are written
    #[arg(long, default_value = "table")]
    format: Format,
    #[command(flatten)]
    world: World,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Baseline {
    /// MPI's own all-reduce
    Mpi,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Aligned columns, for a person
    Table,
    /// One JSON object a line
    Json,
    /// Comma-separated values, with a header
    Csv,
}

#[derive(Debug, Clone)]
enum Contenders {
    All,
    One(Choice),
}

fn contenders(name: &str) -> Result<Contenders, InvalidChoice> {
    if name == "all" { Ok(Contenders::All) } else { name.parse().map(Contenders::One) }
}

impl Contenders {
    fn choices(&self, memory: Memory) -> Vec<Choice> {
        let all = Algorithm::ALL.map(Choice::Algorithm).into_iter();
        match self {
            Self::All if memory == Memory::Device => all.chain([Choice::Vendor(Vendor::Nccl)]).collect(),
            Self::All => all.collect(),
            Self::One(choice) => vec![choice.clone()],
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Sizes(Vec<usize>);

/// No array of a benchmark is larger.
const MOST_BYTES: usize = 1 << 34;

fn sizes(text: &str) -> Result<Sizes, String> {
    let expected =
        || "expected MIN:MAX[:FACTOR] with 1 <= MIN <= MAX <= 16G and a FACTOR above 1, such as 8:16M:4";
    let parts: Vec<_> = text.split(':').collect();
    let (least, most, factor) = match parts[..] {
        [one] => (one, one, "2"),
        [least, most] => (least, most, "2"),
        [least, most, factor] => (least, most, factor),
        _ => return Err(expected().to_owned()),
    };
    let factor = factor.parse::<usize>().ok().filter(|&factor| factor > 1).ok_or_else(expected)?;
    let (least, most) = (bytes(least).ok_or_else(expected)?, bytes(most).ok_or_else(expected)?);
    if least < 1 || least > most || most > MOST_BYTES {
        return Err(expected().to_owned());
    }
    let sizes = std::iter::successors(Some(least), |size| size.checked_mul(factor));
    Ok(Sizes(sizes.take_while(|&size| size <= most).collect()))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut contenders: Vec<_> =
        args.algorithm.iter().flat_map(|contenders| contenders.choices(args.memory)).collect();
    if let Some(Baseline::Mpi) = args.against {
        contenders.retain(|choice| *choice != Choice::Vendor(Vendor::Mpi));
        contenders.push(Choice::Vendor(Vendor::Mpi));
    }
    let settings = Settings {
        contenders,
        sizes_bytes: args.bytes.0.clone(),
        dtype: args.dtype,
        op: args.op,
        memory: args.memory,
        iterations: args.iterations.map(|iterations| iterations as usize),
    };
    args.world.run(|comm| on_rank(comm, args, &settings))
}

fn on_rank(comm: &mut Communicator, args: &Args, settings: &Settings) -> Result<(), Failure> {
    check_baseline(comm, settings)?;
    let talks = comm.rank() == 0;
    let route = if settings.memory == Memory::Device { Some(device_route(comm)?) } else { None };
    if talks {
        head(args.format, comm, route.as_deref());
    }
    let (mut wrong, mut rows) = (0, 0);
    let measured = measure(comm, settings, |row| {
        wrong += row.wrong;
        rows += 1;
        if talks {
            println!("{}", args.format.line(&row));
        }
    });
    let left_out = measured.map_err(|error| Failure::Error(error.to_string()))?;
    for (choice, why) in left_out.iter().filter(|_| talks) {
        eprintln!("unisono: {choice} is left out: {why}");
    }
    if rows == 0 {
        return Err(if talks {
            Failure::Error("nothing was measured".to_owned())
        } else {
            Failure::SaidElsewhere
        });
    }
    if wrong > 0 {
        return Err(Failure::Error(format!("{wrong} elements were wrong")));
    }
    if talks && args.format == Format::Table {
        println!("# {rows} rows, no element wrong");
    }
    Ok(())
}

/// MPI's own all-reduce cannot be measured everywhere. Every rank knows, and rank 0 says so.
fn check_baseline(comm: &mut Communicator, settings: &Settings) -> Result<(), Failure> {
    let wanted = settings.contenders.contains(&Choice::Vendor(Vendor::Mpi));
    let why = match comm.collective(Choice::Vendor(Vendor::Mpi)) {
        _ if !wanted => return Ok(()),
        Err(error) => error.to_string(),
        Ok(_) if settings.dtype.is_half() => {
            format!("MPI has no {}: leave out mpi, or choose another --dtype", settings.dtype)
        }
        Ok(_) => return Ok(()),
    };
    if comm.rank() == 0 { Err(Failure::BadInput(why)) } else { Err(Failure::SaidElsewhere) }
}

/// How arrays on GPUs travel. Where a rank has no GPU, the first such rank says why.
#[cfg(feature = "nccl")]
fn device_route(comm: &mut Communicator) -> Result<String, Failure> {
    comm.device_route().map_err(|error| match error {
        Error::Aborted { .. } => Failure::SaidElsewhere,
        error => Failure::BadInput(error.to_string()),
    })
}

#[cfg(not(feature = "nccl"))]
fn device_route(_: &mut Communicator) -> Result<String, Failure> {
    Err(Failure::BadInput("--memory device: this unisono was built without the feature `nccl`".to_owned()))
}

fn head(format: Format, comm: &Communicator, route: Option<&str>) {
    match format {
        Format::Json => {}
        Format::Csv => println!("{}", COLUMNS.map(|(name, _)| name).join(",")),
        Format::Table => {
            let (ranks, nodes) = (comm.ranks(), comm.topology().nodes());
            println!(
                "# {ranks} ranks on {nodes} node(s) over {}; times of the slowest rank; busbw as in nccl-tests",
                comm.transport()
            );
            if let Some(route) = route {
                println!("# arrays on GPUs: {route}");
            }
            if comm.is_oversubscribed() {
                println!(
                    "# more ranks than cores: they take turns, and times say little about the algorithms"
                );
            }
            println!(
                "#{:>11} {:>10} {:>5} {:>8}  {:<18} {:<18} {:>9} {:>11} {:>11} {:>11} {:>8} {:>8} {:>6}",
                "size",
                "count",
                "type",
                "redop",
                "algorithm",
                "ran",
                "transport",
                "time",
                "min",
                "model",
                "algbw",
                "busbw",
                "#wrong"
            );
            println!(
                "#{:>11} {:>10} {:>5} {:>8}  {:<18} {:<18} {:>9} {:>11} {:>11} {:>11} {:>8} {:>8} {:>6}",
                "(B)", "", "", "", "", "", "", "(us, p50)", "(us)", "(us)", "(GB/s)", "(GB/s)", ""
            );
        }
    }
}

impl Format {
    fn line(self, row: &Row) -> String {
        match self {
            Self::Json => serde_json::to_string(row).expect("a row has no maps with odd keys"),
            Self::Csv => COLUMNS.map(|(_, value)| value(row)).join(","),
            Self::Table => format!(
                "{:>12} {:>10} {:>5} {:>8}  {:<18} {:<18} {:>9} {:>11.2} {:>11.2} {:>11} {:>8.2} {:>8.2} {:>6}",
                row.bytes,
                row.count,
                row.dtype,
                row.op,
                row.algorithm,
                row.ran,
                row.transport,
                row.time_us.p50,
                row.time_us.min,
                row.predicted_us.map_or_else(|| "-".to_owned(), |predicted| format!("{predicted:.2}")),
                row.algbw_gb_per_s,
                row.busbw_gb_per_s,
                row.wrong
            ),
        }
    }
}

/// A column's name, and its value in a row.
type Column = (&'static str, fn(&Row) -> String);

/// The columns of a CSV row; the values have neither commas nor quotes.
const COLUMNS: [Column; 20] = [
    ("algorithm", |row| row.algorithm.clone()),
    ("ran", |row| row.ran.to_owned()),
    ("bytes", |row| row.bytes.to_string()),
    ("count", |row| row.count.to_string()),
    ("dtype", |row| row.dtype.to_owned()),
    ("op", |row| row.op.to_owned()),
    ("ranks", |row| row.ranks.to_string()),
    ("nodes", |row| row.nodes.to_string()),
    ("transport", |row| row.transport.to_owned()),
    ("memory", |row| row.memory.to_owned()),
    ("time_us_min", |row| row.time_us.min.to_string()),
    ("time_us_p50", |row| row.time_us.p50.to_string()),
    ("time_us_p95", |row| row.time_us.p95.to_string()),
    ("time_us_max", |row| row.time_us.max.to_string()),
    ("skew_percent", |row| row.skew_percent.to_string()),
    ("algbw_gb_per_s", |row| row.algbw_gb_per_s.to_string()),
    ("busbw_gb_per_s", |row| row.busbw_gb_per_s.to_string()),
    ("wrong", |row| row.wrong.to_string()),
    ("predicted_us", |row| row.predicted_us.map_or_else(String::new, |predicted| predicted.to_string())),
    ("oversubscribed", |row| row.oversubscribed.to_string()),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        assert_eq!(sizes("8:64").unwrap().0, [8, 16, 32, 64]);
        assert_eq!(sizes("1K:20K:4").unwrap().0, [1024, 4096, 16384]);
        assert_eq!(sizes("2M").unwrap().0, [2 << 20]);
        for nonsense in ["", "8:4", "0:8", "8:16:1", "8:16:2:2", "8:1T", "x:8", "8:17G"] {
            assert!(sizes(nonsense).unwrap_err().contains("MIN:MAX"), "{nonsense}");
        }
    }
}
