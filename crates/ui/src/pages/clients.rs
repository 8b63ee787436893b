//! Clients: what they may do, and giving them another secret.

use axum::extract::Path;
use maud::{Markup, html};
use relais_engine::OperatorRole;
use relais_protocol::admin::{NotificationRightsDeclaration, RoleName, TicketDeclaration};

use crate::{
    error::{Answer, Explained as _},
    form::segment,
    gate::{Sent, Visitor},
    layout::{Page, Part},
    search::quoted,
    show::{careful, empty, fill, number, search_link, service_link},
    words::Words,
};

/// The list.
pub(crate) async fn page(visitor: Visitor) -> Answer {
    let (words, language) = (visitor.words(), visitor.taste.language);
    let declaration = visitor.operator.engine().declaration().await.or_explain(&visitor)?;
    let may = visitor.operator.may(OperatorRole::Admin);
    let main = html! {
        h1 { (words.clients) }
        @if declaration.clients.is_empty() { (empty(words.no_clients, words.no_clients_hint)) } @else {
            div.scroll tabindex="0" { table.dense {
                caption.sr-only { (words.clients) }
                thead { tr { th scope="col" { (words.client) } th scope="col" { (words.consumes) } th scope="col" { (words.works) } th scope="col" { (words.destinations) } th scope="col" { (words.notifications) } th scope="col" { span.sr-only { (words.actions) } } } }
                tbody { @for client in &declaration.clients {
                    @let own: Vec<_> = declaration.authorizations.iter().filter(|own| own.client_id == client.client_id).collect();
                    tr {
                        th scope="row" { (search_link(&quoted(&format!("client:{}", client.client_id)), &client.client_id)) }
                        @for role in [RoleName::Consume, RoleName::Work] {
                            td { ul.chips { @for own in own.iter().filter(|own| own.roles.contains(&role)) { li {
                                (service_link(&own.service_name))
                                @if role == RoleName::Consume { @if let Some(capacity) = own.capacity { span.muted { " ≤" (number(language, u64::from(capacity))) } } @if let Some(share) = own.share { span.muted { " ×" (share) } } }
                            } } } }
                        }
                        td { @for destination in client.destinations.iter().flatten() { code { (destination.name) } " " } }
                        td { (rights(words, client.notifications.as_ref())) }
                        td.buttons { @if may { (careful(&visitor, &format!("/ui/clients/{}/secret", segment(&client.client_id)), words.rotate, words.rotate_question, &[])) } }
                    }
                } }
            } }
        }
    };
    Ok(Page::new(words.clients, Part::Clients).live("declared").show(&visitor, None, &main))
}

/// What a client may do with notifications.
fn rights(words: &Words, rights: Option<&NotificationRightsDeclaration>) -> Markup {
    let types = |types: &[String]| html! { @for kind in types { " " code { (kind) } } };
    html! {
        @if let Some(NotificationRightsDeclaration { emit, audience, ticket }) = rights {
            ul.plain {
                @if !emit.is_empty() { li { (words.may_emit) (types(emit)) } }
                @if !audience.is_empty() { li { (words.may_change_audience) (types(audience)) } }
                @match ticket {
                    Some(TicketDeclaration::Allowed(true)) => li { (words.tickets_for_user) },
                    Some(TicketDeclaration::Types(named)) => li { (words.tickets_for_user_and) (types(named)) },
                    Some(TicketDeclaration::Allowed(false)) | None => {}
                }
            }
        }
    }
}

/// Gives a client another secret, and shows it this once.
pub(crate) async fn rotate(Path(client_id): Path<String>, Sent(visitor, _): Sent) -> Answer {
    let words = visitor.words();
    let secret = visitor.operator.rotate_secret(&client_id).await.or_explain(&visitor)?;
    let main = html! {
        p.crumbs { a href="/ui/clients" { (words.clients) } }
        h1 { (fill(words.new_secret, &[("client", &secret.client_id)])) }
        p { (words.shown_once) }
        pre.code.secret tabindex="0" { (secret.client_secret) }
        p { a.button href="/ui/clients" { (words.noted) } }
    };
    Ok(Page::new(words.clients, Part::Clients).show(&visitor, None, &main))
}
