//! `miot pki`: a private authority, and the certificates of server, nodes and readers.

mod authority;
mod files;
mod show;
mod validity;

use anyhow::Context as _;
use authority::Authority;
use clap::{Args, Subcommand};
use files::Pair;
use miot_tls::Role;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use validity::Validity;

/// Default validity of an authority, days.
const AUTHORITY_DAYS: u32 = 3650;
/// Default validity of all other certificates, days.
const DAYS: u32 = 365;

/// Create the certificates that authenticate log-server, log-clients, readers and operators
#[derive(Args, Debug)]
#[command(
    after_help = "Example: a server, two nodes and a reader\n  miot pki init pki\n  miot pki server pki --name logs.example.org --name 10.0.0.1\n  miot pki node pki node1 node2\n  miot pki reader pki alice\n  miot pki show pki/node/node1.pem\n\nEach command prints where to install its files. Guide: docs/guide/security.md."
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Init(NewAuthority),
    Server(ServerCertificate),
    Node(ClientCertificates),
    Reader(ClientCertificates),
    Operator(ClientCertificates),
    Show(show::Arguments),
}

/// Create the authority that signs all certificates
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  miot pki init pki")]
struct NewAuthority {
    /// Directory for all certificates and keys; its ca.key must be kept secret
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Name of the authority, for display [default: name of this machine]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    validity: Validity,
}

/// Create key and certificate of the log-server
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  miot pki server pki --name logs.example.org --name 10.0.0.1")]
struct ServerCertificate {
    /// Directory of `miot pki init`
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Host name or address under which nodes and readers connect; may be repeated
    #[arg(long = "name", value_name = "HOST|IP", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    making: IssueOptions,
}

/// Create keys and certificates of nodes (log-clients), readers (miot tail) or operators (miot ctl
/// --server)
#[derive(Args, Debug)]
#[command(
    after_help = "Examples:\n  miot pki node pki node1 node2\n  miot pki node pki node1 --renew\n  miot pki reader pki alice --days 30\n  miot pki operator pki bob"
)]
struct ClientCertificates {
    /// Directory of `miot pki init`
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Name of a node in the trace (`node` in log-client.toml, by default the host name), or any
    /// name of a reader or operator. Each gets its own certificate
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    making: IssueOptions,
}

#[derive(Args, Debug)]
struct IssueOptions {
    #[command(flatten)]
    validity: Validity,
    /// Replace existing keys and certificates, which are otherwise never overwritten
    #[arg(long)]
    renew: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match &arguments.command {
        Command::Init(arguments) => init(arguments)?,
        Command::Server(ServerCertificate { dir, names, making }) => {
            issue(dir, Role::Server, std::slice::from_ref(names), making)?;
        }
        Command::Node(arguments) => each(arguments, Role::Node)?,
        Command::Reader(arguments) => each(arguments, Role::Reader)?,
        Command::Operator(arguments) => each(arguments, Role::Operator)?,
        Command::Show(arguments) => show::run(arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn init(arguments: &NewAuthority) -> anyhow::Result<()> {
    let name = arguments.name.clone();
    let name = name.unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let dir = &arguments.dir;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let (certificate, key) = authority::new(&name, arguments.validity.times(AUTHORITY_DAYS)?)?;
    let pair = Pair::authority(dir);
    pair.write(&certificate, &key, false)?;
    println!(
        "{}  the authority's certificate: goes to every machine, as `tls_authority`\n\
         {}  its key: keep it here; it can issue certificates of any server, node or reader",
        pair.certificate.display(),
        pair.key.display(),
    );
    Ok(())
}

fn each(arguments: &ClientCertificates, role: Role) -> anyhow::Result<()> {
    let each: Vec<Vec<String>> = arguments.names.iter().map(|name| vec![name.clone()]).collect();
    issue(&arguments.dir, role, &each, &arguments.making)
}

/// Issues one key and certificate for each list of names.
fn issue(dir: &Path, role: Role, holders: &[Vec<String>], making: &IssueOptions) -> anyhow::Result<()> {
    let authority = Authority::open(dir)?;
    // Check all names before the first pair is created.
    let pairs = holders.iter().map(|names| {
        names.iter().try_for_each(|name| authority::check_name(role, name))?;
        let pair = Pair::of(dir, role, &names[0]);
        pair.check_free(making.renew)?;
        Ok((names, pair))
    });
    let pairs = pairs.collect::<anyhow::Result<Vec<_>>>()?;
    for (names, pair) in &pairs {
        let (certificate, key) = authority.issue(role, names, making.validity.times(DAYS)?)?;
        pair.write(&certificate, &key, making.renew)?;
    }
    for (_, pair) in &pairs {
        println!("{}\n{}", pair.certificate.display(), pair.key.display());
    }
    let (machine, daemon) = match role {
        Role::Server => ("the log-server's machine, and in log-server.toml", "log-server"),
        Role::Node => ("its node, and in log-client.toml there", "log-client"),
        Role::Reader => ("its reader, for these options (or MIOT_TLS_CERTIFICATE, ...)", ""),
        Role::Operator => ("its operator, for these options (or MIOT_TLS_CERTIFICATE, ...)", ""),
    };
    println!("Each pair goes to {machine}, with {}:", dir.join(files::AUTHORITY).display());
    let Some((names, pair)) = pairs.first() else { return Ok(()) };
    let file = |path: &Path| Path::new("/etc/miot").join(path.file_name().unwrap_or_default());
    let (certificate, key) = (file(&pair.certificate), file(&pair.key));
    let authority = file(Path::new(files::AUTHORITY));
    if daemon.is_empty() {
        println!(
            "  miot {} HOST:PORT --tls-certificate {} --tls-key {} --tls-authority {}",
            if role == Role::Operator { "ctl status --server" } else { "tail -f" },
            pair.certificate.display(),
            pair.key.display(),
            dir.join(files::AUTHORITY).display()
        );
        return Ok(());
    }
    if role == Role::Node {
        println!("  node = {:?}", names[0]);
    }
    println!(
        "  tls_certificate = {certificate:?}\n  tls_key = {key:?}\n  tls_authority = {authority:?}\n\
         Only the user who runs the {daemon} may read the key."
    );
    Ok(())
}
