//! `moira token`: what shows who you are where the kernel cannot.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use anyhow::Context;
use api::{Role, TokenPage, TokenRequest, TokenView};
use clap::{Args, Subcommand};

use super::service::{self, Listing, Shape, of_service, or_dash};
use crate::failure::Failure;
use crate::render;

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Make a token and print its secret, which cannot be shown again; over the service's socket only
    Create(Create),
    /// List your tokens; an admin sees all
    Ls(Listing),
    /// End tokens, and within seconds whatever goes on by them
    Revoke(Revoke),
}

#[derive(Debug, Args)]
pub(crate) struct Create {
    /// What it may do: viewer, user, operator or admin; your own role if nothing is said
    #[arg(long)]
    role: Option<Role>,
    /// How long it is good; 30 days if nothing is said, 366 at most
    #[arg(long, value_name = "DURATION")]
    expires_in: Option<api::Duration>,
    /// What it is for
    #[arg(long)]
    label: Option<String>,
    /// For whom; only an admin makes tokens for others
    #[arg(long)]
    user: Option<String>,
    /// Write the secret into a new file that only you can read, for MOIRA_TOKEN_FILE, and do not print it
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

#[derive(Debug, Args)]
pub(crate) struct Revoke {
    #[arg(required = true, value_name = "ID")]
    ids: Vec<u32>,
    #[arg(short, long, value_enum, default_value_t)]
    output: Shape,
}

const COLUMNS: [&str; 6] = ["ID", "USER", "ROLE", "EXPIRES", "STATE", "LABEL"];

impl Token {
    pub(crate) fn run(self) -> Result<(), Failure> {
        match self {
            Token::Create(create) => create.run(),
            Token::Ls(listing) => list(listing),
            Token::Revoke(revoke) => revoke.run(),
        }
    }
}

impl Create {
    fn run(self) -> Result<(), Failure> {
        let Create { role, expires_in, label, user, file, output } = self;
        // Made before the token is: a secret that cannot be written down would be lost.
        let mut written = file.as_ref().map(|path| {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            made.with_context(|| format!("cannot make {}", path.display()))
        });
        if let Some(Err(error)) = written {
            return Err(Failure::new(error));
        }
        let request = TokenRequest { user, role, expires_in, label };
        let asked = service::ask(async |client| {
            service::at_the_allowed_pace(async || client.create_token(&request).await).await.map_err(of_service)
        });
        if let (Err(_), Some(path)) = (&asked, &file) {
            std::fs::remove_file(path).ok();
        }
        let mut new = asked?;
        if let (Some(Ok(file)), Some(path)) = (&mut written, &file) {
            let text = format!("{}\n", new.secret);
            file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).with_context(|| {
                format!("token {} was made, but cannot be written to {}: revoke it", new.token.id, path.display())
            })?;
            new.secret = String::new();
        }
        match output {
            Shape::Json => service::json(&new),
            Shape::Name => render::line(&new.token.id.to_string()),
            Shape::Table => {
                let view = &new.token;
                service::tell(&format!(
                    "token {} of {} as {}, good until {}",
                    view.id, view.user, view.role, view.expires_at
                ));
                if new.secret.is_empty() { Ok(()) } else { render::line(&new.secret) }
            }
        }
    }
}

impl Revoke {
    fn run(self) -> Result<(), Failure> {
        let tokens = service::ask(async |client| {
            let mut tokens = Vec::new();
            for &id in &self.ids {
                let revoked = service::at_the_allowed_pace(async || client.revoke_token(id).await).await;
                tokens.push(revoked.map_err(of_service)?);
            }
            Ok(tokens)
        })?;
        print(&TokenPage { tokens }, Listing::of(self.output))
    }
}

fn list(listing: Listing) -> Result<(), Failure> {
    let page = service::ask(async |client| client.tokens().await.map_err(of_service))?;
    print(&page, listing)
}

fn print(page: &TokenPage, listing: Listing) -> Result<(), Failure> {
    match listing.output {
        Shape::Json => service::json(page),
        Shape::Name => page.tokens.iter().try_for_each(|token| render::line(&token.id.to_string())),
        Shape::Table => render::table(listing.header(&COLUMNS), page.tokens.iter().map(row)),
    }
}

fn row(token: &TokenView) -> Vec<String> {
    let expired = api::unix_millis(&token.expires_at).is_ok_and(service::is_past);
    let state = match &token.revoked_at {
        Some(_) => "revoked",
        None if expired => "expired",
        None => "good",
    };
    let (id, role) = (token.id.to_string(), token.role.to_string());
    vec![id, token.user.clone(), role, token.expires_at.clone(), state.into(), or_dash(token.label.as_ref())]
}
