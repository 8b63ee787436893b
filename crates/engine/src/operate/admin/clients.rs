//! Clients: their secrets, their signing secrets, their destinations on the broker, and their rights for notifications.

use std::time::Duration;

use relais_core::{Change, Client, ClientId, Declared, Destination};
use relais_protocol::{
    HumanDuration,
    admin::{AppliedAction, ClientDeclaration, ClientSecret, ClientState, DestinationDeclaration, SecretDeclaration},
    callback::{SigningSecretView, SigningSecrets},
};

use super::{declare::Plan, notification_rights};
use crate::{
    Engine, EngineError, Problem,
    auth::{check_signing_secret, generate_secret, generate_signing_secret},
    follow::views::text,
};

/// How long a replaced signing secret is still used, by default.
const OVERLAP: Duration = Duration::from_secs(24 * 3600);

/// And at most.
const LONGEST_OVERLAP: Duration = Duration::from_secs(90 * 86_400);

/// The most destinations of a client.
const MAX_DESTINATIONS: usize = 100;

impl Engine {
    /// The clients, in the order of their names.
    pub async fn client_states(&self) -> Result<Vec<ClientState>, EngineError> {
        self.refresh().await?;
        let snapshot = self.snapshot()?;
        let mut clients: Vec<ClientState> = snapshot
            .declared
            .clients
            .values()
            .map(|client| ClientState {
                client_id: client.client_id.to_string(),
                authorizations: snapshot.declared.authorizations.keys().filter(|(key, _)| *key == client.key).count(),
                destinations: client.destinations.iter().map(destination_declaration).collect(),
                notifications: notification_rights::declaration(&client.notifications),
            })
            .collect();
        clients.sort_by(|a, b| a.client_id.cmp(&b.client_id));
        Ok(clients)
    }

    /// Rotates the secret of a client. The new one is shown only once.
    pub async fn rotate_secret(&self, client_id: &str) -> Result<ClientSecret, EngineError> {
        let client = self.declared_client(client_id).await?;
        let secret = generate_secret()?;
        let secret_hash = Some(self.hash(secret.clone()).await?);
        let client_id = client.client_id.clone();
        self.declare(vec![Change::PutClient { client_id, secret_hash, destinations: None, notifications: None }])
            .await?;
        Ok(ClientSecret { client_id: client.client_id.to_string(), client_secret: secret })
    }

    /// The signing secrets of a client, for an operator.
    pub async fn signing_secrets(&self, client_id: &str) -> Result<SigningSecrets, EngineError> {
        Ok(signing_secrets(&*self.declared_client(client_id).await?))
    }

    /// Rotates the signing secret of a client. The previous one is used as well for a while.
    pub async fn rotate_signing_secret(
        &self,
        client_id: &str,
        overlap: Option<HumanDuration>,
    ) -> Result<SigningSecrets, EngineError> {
        let client = self.declared_client(client_id).await?;
        let overlap = overlap.map_or(OVERLAP, |overlap| overlap.0);
        if overlap > LONGEST_OVERLAP {
            return Err(EngineError::Invalid(vec![Problem::at("/overlap", "must be at most 90d")]));
        }
        let secret = generate_signing_secret()?;
        let client_id_ = client.client_id.clone();
        self.declare(vec![Change::PutSigningSecret { client_id: client_id_, secret, overlap, unless_any: false }])
            .await?;
        self.signing_secrets(client_id).await
    }

    async fn declared_client(&self, client_id: &str) -> Result<std::sync::Arc<Client>, EngineError> {
        self.refresh().await?;
        self.snapshot()?.declared.clients.get(client_id).cloned().ok_or(EngineError::ClientNotFound)
    }

    pub(super) async fn plan_client(
        &self,
        declared: &Declared,
        client: &ClientDeclaration,
        path: &str,
        dry_run: bool,
        problems: &mut Vec<Problem>,
        plan: &mut Plan,
    ) -> Result<(), EngineError> {
        let client_id = match ClientId::new(client.client_id.clone()) {
            Ok(client_id) => client_id,
            Err(error) => {
                problems.push(Problem::at(format!("{path}/clientId"), error.to_string()));
                return Ok(());
            }
        };
        let known = declared.clients.get(&client_id);
        let before = problems.len();
        let secret = plain(client.client_secret.as_ref(), &format!("{path}/clientSecret"), problems);
        let signing = plain(client.signing_secret.as_ref(), &format!("{path}/signingSecret"), problems);
        if let Some(Err(why)) = signing.map(check_signing_secret) {
            problems.push(Problem::at(format!("{path}/signingSecret"), why));
        }
        let destinations = client.destinations.as_deref().map(|wanted| destinations(wanted, path, problems));
        if let Some(wanted) = &client.notifications {
            notification_rights::check(wanted, &format!("{path}/notifications"), problems);
        }
        if problems.len() > before {
            return Ok(());
        }

        // A new secret, and where it is generated, who is shown it.
        let (secret, shown) = match (secret, known) {
            (Some(secret), Some(known)) => {
                let (given, hash) = (secret.to_owned(), known.secret_hash.clone());
                let same = tokio::task::spawn_blocking(move || bcrypt::verify(given, &hash).unwrap_or(false));
                let same = same.await.map_err(|_| EngineError::Stopping)?;
                ((!same).then(|| secret.to_owned()), None)
            }
            (Some(secret), None) => (Some(secret.to_owned()), None),
            (None, Some(_)) => (None, None),
            (None, None) => {
                let secret = generate_secret()?;
                (Some(secret.clone()), (!dry_run).then_some(secret))
            }
        };
        let moved = destinations.filter(|wanted| known.is_none_or(|known| known.destinations != *wanted));
        let rights = client.notifications.as_ref().map(notification_rights::rights);
        let rights =
            rights.filter(|wanted| *wanted != known.map(|known| known.notifications.clone()).unwrap_or_default());
        let signed_otherwise = signing.filter(|secret| {
            known.and_then(|known| known.signing_secrets.first()).is_none_or(|newest| newest.secret != *secret)
        });
        let unsigned = known.is_none_or(|known| known.signing_secrets.is_empty());

        let secret_hash = match secret {
            None => None,
            Some(secret) => match self.hash(secret).await {
                Ok(hash) => Some(hash),
                Err(error) => {
                    problems.push(Problem::at(format!("{path}/clientSecret"), error.to_string()));
                    return Ok(());
                }
            },
        };
        let put = secret_hash.is_some() || moved.is_some() || rights.is_some();
        let action = match known {
            None => AppliedAction::Created,
            Some(_) if put || signed_otherwise.is_some() => AppliedAction::Updated,
            Some(_) => AppliedAction::Unchanged,
        };
        if put {
            let client_id = client_id.clone();
            plan.changes.push(Change::PutClient { client_id, secret_hash, destinations: moved, notifications: rights });
        }
        let (secret, unless_any) = match signed_otherwise {
            Some(secret) => (Some(secret.to_owned()), false),
            None if unsigned => (Some(generate_signing_secret()?), true),
            None => (None, true),
        };
        if let Some(secret) = secret {
            plan.changes.push(Change::PutSigningSecret { client_id, secret, overlap: OVERLAP, unless_any });
        }
        plan.note("client", client.client_id.clone(), action, shown);
        Ok(())
    }
}

/// The signing secrets of a client.
pub fn signing_secrets(client: &Client) -> SigningSecrets {
    let secrets = client.signing_secrets.iter().map(|one| SigningSecretView {
        secret: one.secret.clone(),
        created_date: text(one.created),
        expires_date: one.expires.map(text),
    });
    SigningSecrets { client_id: client.client_id.to_string(), secrets: secrets.collect() }
}

/// A secret that is written out. Only whoever reads a file may look into its own environment.
fn plain<'d>(secret: Option<&'d SecretDeclaration>, path: &str, problems: &mut Vec<Problem>) -> Option<&'d str> {
    match secret? {
        SecretDeclaration::Plain(secret) => Some(secret),
        SecretDeclaration::Env { env } => {
            let message = format!("{env} is an environment reference: it is resolved where the file is read");
            problems.push(Problem::at(path, message));
            None
        }
    }
}

fn destinations(wanted: &[DestinationDeclaration], path: &str, problems: &mut Vec<Problem>) -> Vec<Destination> {
    if wanted.len() > MAX_DESTINATIONS {
        problems.push(Problem::at(format!("{path}/destinations"), format!("must be at most {MAX_DESTINATIONS}")));
    }
    let mut found: Vec<Destination> = Vec::new();
    for (i, one) in wanted.iter().enumerate() {
        let path = format!("{path}/destinations/{i}");
        let exchange = one.exchange.clone().unwrap_or_default();
        if ClientId::new(one.name.clone()).is_err() {
            problems.push(Problem::at(format!("{path}/name"), "must follow the same rules as a client's name"));
        }
        if found.iter().any(|other| other.name == one.name) {
            problems.push(Problem::at(path.clone(), format!("destination {} is declared twice", one.name)));
        }
        // What AMQP can carry: a short string.
        let fits = |text: &str| text.len() <= 255 && !text.contains(char::is_control);
        if !fits(&exchange) || !fits(&one.routing_key) || exchange.is_empty() && one.routing_key.is_empty() {
            let message = "needs an exchange or a routing key, of at most 255 bytes each, without control characters";
            problems.push(Problem::at(path, message));
        }
        found.push(Destination { name: one.name.clone(), exchange, routing_key: one.routing_key.clone() });
    }
    found
}

pub(super) fn destination_declaration(destination: &Destination) -> DestinationDeclaration {
    DestinationDeclaration {
        name: destination.name.clone(),
        exchange: Some(destination.exchange.clone()).filter(|exchange| !exchange.is_empty()),
        routing_key: destination.routing_key.clone(),
    }
}
