//! `miot-manuals DIR`: writes manual pages into `DIR/man` and shell completions into
//! `DIR/completions`, from the clap definitions of the commands. Packages contain the files; builds
//! of users do not need this program. `miot-manuals --reference DIR`: writes the generated pages of
//! `docs/reference` into DIR.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod reference;

use anyhow::{Context as _, bail};
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::Write;
use std::path::Path;

const SHELLS: [(Shell, &str); 3] = [(Shell::Bash, ""), (Shell::Zsh, "_"), (Shell::Fish, "")];

fn main() -> anyhow::Result<()> {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let (is_reference, dir) = match &words[..] {
        [word, dir] if word == "--reference" => (true, Path::new(dir)),
        [dir] => (false, Path::new(dir)),
        _ => bail!("usage: miot-manuals [--reference] DIR"),
    };
    let commands = [
        ("1", miot::command()),
        // Replaces the page of `miot query`, which only passes on its arguments.
        ("1", miot_query::cli::Options::command()),
        ("1", miot_query::cli::WorkerOptions::command()),
        ("8", miot_log_client::cli::Options::command()),
        ("8", miot_log_server::cli::Options::command()),
        ("8", miot_uploader::cli::Options::command()),
        ("8", miot_hook_fuse::options::Options::command()),
    ];
    if is_reference {
        return references(dir, commands.into_iter().map(|(_, command)| command).collect());
    }
    for (section, command) in commands {
        completions(&dir.join("completions"), command.clone())?;
        pages(&dir.join("man"), section, command)?;
    }
    Ok(())
}

fn references(dir: &Path, commands: Vec<Command>) -> anyhow::Result<()> {
    let client = reference::Configuration {
        program: "log-client",
        file: "/etc/miot/log-client.toml",
        prefix: "MIOT_CLIENT_",
        source: include_str!("../../../log-client/src/config.rs"),
    };
    let server = reference::Configuration {
        program: "log-server",
        file: "/etc/miot/log-server.toml",
        prefix: "MIOT_SERVER_",
        source: include_str!("../../../log-server/src/settings/config.rs"),
    };
    let pages = [
        ("commands.md", reference::commands(commands)),
        ("configuration.md", reference::configuration(&[client, server])?),
    ];
    for (name, page) in pages {
        let file = dir.join(name);
        std::fs::write(&file, page).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn completions(dir: &Path, mut command: Command) -> anyhow::Result<()> {
    let name = command.get_name().to_owned();
    for (shell, prefix) in SHELLS {
        let dir = dir.join(shell.to_string());
        std::fs::create_dir_all(&dir)?;
        let suffix = if shell == Shell::Fish { ".fish" } else { "" };
        let mut file = std::fs::File::create(dir.join(format!("{prefix}{name}{suffix}")))?;
        clap_complete::generate(shell, &mut command, &name, &mut file);
    }
    Ok(())
}

/// Writes a page for the command and one for each subcommand: `miot-run.1`, `miot-pki-init.1`.
fn pages(dir: &Path, section: &str, mut command: Command) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir)?;
    command = command.disable_help_subcommand(true);
    command.build();
    all_pages(dir, section, &command, &[])
}

fn all_pages(dir: &Path, section: &str, command: &Command, above: &[&str]) -> anyhow::Result<()> {
    let path: Vec<&str> = above.iter().copied().chain([command.get_name()]).collect();
    let page = page(command, section, &path)?;
    let file = dir.join(format!("{}.{section}", path.join("-")));
    std::fs::write(&file, page).with_context(|| file.display().to_string())?;
    command.get_subcommands().try_for_each(|sub| all_pages(dir, section, sub, &path))
}

fn page(command: &Command, section: &str, path: &[&str]) -> anyhow::Result<Vec<u8>> {
    let name = path.join("-");
    // The help text after the options has manual line breaks, which are kept.
    let notes = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let renamed = command.clone().after_help("").after_long_help("");
    let man = Man::new(renamed.clone())
        .title(name)
        .section(section)
        .manual("MIOT")
        .source(format!("MIOT {}", env!("CARGO_PKG_VERSION")));
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    if renamed.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut out)?;
    }
    if renamed.has_subcommands() {
        subcommands(&renamed, section, path, &mut out)?;
    }
    if let Some(notes) = notes {
        out.extend_from_slice(b".SH NOTES\n.nf\n");
        notes.lines().try_for_each(|line| writeln!(out, "{}", escaped(line)))?;
        out.extend_from_slice(b".fi\n");
    }
    if let [.., above, _] = path {
        writeln!(out, ".SH \"SEE ALSO\"\n\\fB{}\\fR({section})", escaped(&path[..path.len() - 1].join("-")))?;
        debug_assert!(!above.is_empty());
    }
    Ok(out)
}

fn subcommands(command: &Command, section: &str, path: &[&str], out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, ".SH SUBCOMMANDS")?;
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
        let page = escaped(&format!("{}-{}", path.join("-"), sub.get_name()));
        writeln!(out, ".TP\n\\fB{page}\\fR({section})\n{}", escaped(&about))?;
    }
    Ok(())
}

/// Escapes a line of text for roff.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}
