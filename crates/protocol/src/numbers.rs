//! The error numbers. The first three digits are the HTTP status. A number, once given, never changes its meaning.

macro_rules! numbers {
    ($($name:ident = $number:literal, $description:literal, cause: $cause:literal, remedy: $remedy:literal;)*) => {
        /// A kind of refusal.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorNumber {
            $(#[doc = $description] $name,)*
        }

        impl ErrorNumber {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The number on the wire.
            pub const fn number(self) -> u32 {
                match self { $(Self::$name => $number,)* }
            }

            /// The words on the wire.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => $description,)* }
            }

            /// When it happens, for the documentation. What stands between backticks is code.
            pub const fn cause(self) -> &'static str {
                match self { $(Self::$name => $cause,)* }
            }

            /// What the caller or the operator does about it, for the documentation.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)* }
            }
        }
    };
}

numbers! {
    SchemaMismatch = 400001, "Error validating the body with the target service's json-schema.",
        cause: "The `body` of the task does not conform to the `jsonSchema` of the service.",
        remedy: "Correct the body: `details` names each place and what is wrong there. `GET /v1/services/{service}` shows the schema. The operator changes it with the `jsonSchema` key of the service.";
    MalformedJson = 400002, "The request is not valid JSON.",
        cause: "The request body is not JSON, or the connection broke before all of it arrived.",
        remedy: "Send valid JSON in UTF-8. `details` says at which line and column the parser stopped.";
    InvalidRequest = 400003, "The request does not have the expected fields.",
        cause: "The request is JSON, but a field is missing, unknown, of the wrong type or out of range.",
        remedy: "Correct the field that `details` names. The OpenAPI document lists the fields of every request.";
    UnknownCallbackType = 400004, "Unknown callback type.",
        cause: "The `type` of the callback is none that this server can send. `http` needs `callbacks.allow_http`, and `amqp` needs `broker.url`.",
        remedy: "Use `https`, or ask the operator to change the setting that the type needs.";
    CallbackUrlNotAllowed = 400005, "The callback URL is not allowed.",
        cause: "The server does not send callbacks to this target: the URL is not `https`, has credentials, a port that is not allowed or a private address, or the client has no such `destination`.",
        remedy: "Use a public `https` URL; `details` says which rule refused it. The operator makes exceptions with `callbacks.allow_hosts`, `callbacks.allow_networks`, `callbacks.ports` and `callbacks.allow_http`, and declares the `destinations` of a client.";
    InvalidParameter = 400006, "A query parameter is not valid.",
        cause: "A query parameter is unknown, given twice, or has a value that is not allowed.",
        remedy: "Correct the parameter that `details` names. A `cursor` must be one that an answer gave as `nextCursor`, and `wait` is at most `tasks.max_wait`.";
    InvalidHeader = 400007, "A header is not valid.",
        cause: "The `Idempotency-Key` is empty, too long, given twice, or has characters other than visible ASCII.",
        remedy: "Send the header once, with 1 to 200 visible ASCII characters, for example a UUID.";
    NestedTooDeep = 400008, "The JSON is nested too deeply.",
        cause: "The JSON has more than 100 levels of objects and arrays within each other.",
        remedy: "Send a flatter structure, or put the nested part into a string. The limit is fixed.";
    InvalidBatch = 400009, "A batch must have between 1 and 1000 entries.",
        cause: "A request that has a list of tasks or messages has none of them, or more than 1000.",
        remedy: "Send between 1 and 1000 entries. Divide longer lists into several requests.";
    InvalidDeclaration = 400010, "The declaration is not valid.",
        cause: "A service, client, authorization, schedule, outbox, capture, audience or notification source is declared with a value that is not allowed, or refers to something that does not exist. Nothing of the declaration was applied.",
        remedy: "Correct what `details` names and apply it again. `docs/declarations.md` describes every key, and `relais apply --dry-run` checks a file without changing anything.";
    PrerequisiteNotFound = 400011, "A task to wait for was not found.",
        cause: "`after` names a task that does not exist, belongs to another client, or was refused in the same request.",
        remedy: "Name tasks that the same client submitted and that are not purged yet. `refs` must name entries that come earlier in the same request.";
    ParentNotFound = 400012, "The parent task was not found.",
        cause: "`parentId` names a task that does not exist, or one that the client neither submitted nor works on.",
        remedy: "Name a task of the same client, or an unfinished task of a service on which the client has the role `work`. Leave `parentId` out if there is no parent.";
    NumberTooLong = 400013, "A number has too many digits for the target service's json-schema.",
        cause: "The service has a `jsonSchema`, and a number in the body has more than 1000 digits when written without an exponent, or all exponents together stand for more than 1,000,000 zeros.",
        remedy: "Send the number as a string, or shorten it. The limit is fixed; it does not hold for services without a `jsonSchema`.";
    ValidationTimeout = 400014, "Validating the body with the target service's json-schema took too long.",
        cause: "The validation of the body began, and did not end within `validation.timeout`.",
        remedy: "Send a smaller body. The operator simplifies the `jsonSchema` of the service or raises `validation.timeout`.";
    InvalidNotification = 400015, "The notification is not valid.",
        cause: "The message has no targets or too many, a type of audience that nobody has declared, a name that is not allowed, a payload that is too large, an expiration in the past, or `attempts`.",
        remedy: "Correct what `details` names. A message to many users goes to an audience with declared members.";
    NoMembers = 400016, "Nobody is known who could acknowledge the notification.",
        cause: "The message has `ack_required`, and its audience has no declared members. Members that only tokens name can not be awaited.",
        remedy: "Declare the members with `PUT /v1/audiences/{type}/{target}/members`, or send it without `ack_required`.";
    InvalidMembers = 400017, "The members are not valid.",
        cause: "There are too many members in one call, a name is not allowed, a type of audience is not declared, a user would have members, or a target would contain itself.",
        remedy: "Correct what `details` names. At most 10,000 members are taken at once.";
    InvalidPushSubscription = 400018, "The push subscription is not valid.",
        cause: "The server does not send pushes to the endpoint (it is not `https`, or has a port or an address that the rules of callbacks do not allow), or a key is not one.",
        remedy: "Send what `PushSubscription.toJSON()` gives in the page; `details` names what is wrong. The operator makes exceptions with `callbacks.allow_hosts`, `callbacks.allow_networks`, `callbacks.ports` and `callbacks.allow_http`.";
    InvalidToken = 401001, "The token is not valid.",
        cause: "There is no token or ticket, it has expired, its signature is wrong, or its claims are not those that the server expects; or it names an audience of a type that nobody has declared, which `details` says.",
        remedy: "Get a new token from your identity provider, or a new ticket from your backend. The server's log says at level debug why it was refused.";
    Forbidden = 403001, "Forbidden.",
        cause: "The credentials are missing or wrong, or the client does not have the role that the route needs on this service. The server does not say which, so that nobody can guess client names.",
        remedy: "Check the client id and secret in the `Authorization` header (Basic). The operator grants roles with `relais authorization put` and sets a new secret with `relais client rotate`.";
    AdminForbidden = 403002, "The admin API needs its own credentials.",
        cause: "The admin API was called without a valid token. When no token is configured, it answers only direct requests from the same machine.",
        remedy: "Send `Authorization: Bearer` and the token (`--token` or `RELAIS_ADMIN_TOKEN` for the command line). The operator sets `admin.token`, `admin.token_file` or `admin.operators`.";
    RoleTooLow = 403003, "Your role does not allow this.",
        cause: "The operator's token is valid, but its role does not include this action.",
        remedy: "Use the token of an operator with the role that `details` names. Roles are part of `admin.operators`: `read-only`, `operator` and `admin`.";
    ServiceNotFound = 404001, "Service not found.",
        cause: "No service with this name is declared.",
        remedy: "Check the name: upper and lower case differ. `relais service list` shows the services; declare a new one with `relais apply` or `relais service put`.";
    TaskNotFound = 404002, "Task not found.",
        cause: "No task has this id on this service, the task belongs to another client, or it was purged.",
        remedy: "Check the id, the service and the client. Ended tasks are kept for `purge.finished`, all tasks for `purge.any`, unless the service has its own `retention`.";
    RouteNotFound = 404003, "There is nothing at this address.",
        cause: "No route has this path.",
        remedy: "Check the path, including `/v1` or `/admin`. `/docs` lists all routes.";
    ClientNotFound = 404004, "Client not found.",
        cause: "No client with this name is declared.",
        remedy: "Check the name: `relais client list` shows the clients. Declare a new one with `relais apply` or `relais client put`.";
    AuthorizationNotFound = 404005, "Authorization not found.",
        cause: "The client has no authorization on the service, or one of the two does not exist.",
        remedy: "Check both names: `relais authorization list` shows the authorizations.";
    CallbackNotFound = 404006, "Callback not found.",
        cause: "No callback has this id, or its task was purged.",
        remedy: "Check the id: `relais callback list` shows the callbacks. A callback is removed together with its task.";
    DeadLetterNotFound = 404007, "Dead letter not found.",
        cause: "The service has no dead letter with this id, or has no broker.",
        remedy: "Check the id: `relais deadletter list` shows the dead letters. Somebody may have replayed or discarded it.";
    ScheduleNotFound = 404008, "Schedule not found.",
        cause: "No schedule with this name is declared.",
        remedy: "Check the name: `relais schedule list` shows the schedules. Declare a new one with `relais apply` or `relais schedule put`.";
    BatchNotFound = 404009, "Batch not found.",
        cause: "No batch has this id, the batch belongs to another client, or it was purged.",
        remedy: "Check the id and the client. Create a batch with `POST /v1/batches` (`open`) before you submit tasks with its `batchId`.";
    InstanceNotFound = 404010, "Instance not found.",
        cause: "No process with this name is known on the database.",
        remedy: "Check the name: `relais instance list` shows the processes. `server.name` sets the name of a process.";
    OutboxNotFound = 404011, "Outbox not found.",
        cause: "No outbox with this name is declared.",
        remedy: "Check the name: `relais outbox list` shows the outboxes. Declare a new one with `relais apply`.";
    CaptureNotFound = 404012, "Capture not found.",
        cause: "No capture with this name is declared.",
        remedy: "Check the name: `relais capture list` shows the captures. Declare a new one with `relais apply`.";
    NotificationNotFound = 404013, "Notification not found.",
        cause: "There is no such message, it is another client's, or the user does not see it.",
        remedy: "Check the id. Messages are removed some time after they have expired (`notifications.age`).";
    LinkNotFound = 404014, "Link not found.",
        cause: "This process has no open link of this user with this id.",
        remedy: "Open a new link with the new token. It goes on from the last `id`.";
    PushOff = 404015, "Web Push is not enabled.",
        cause: "`notifications.push_contact` is not set on this server.",
        remedy: "The operator sets `notifications.push_contact` to a mail address or a page that the operators of push services may use.";
    PushSubscriptionNotFound = 404016, "Push subscription not found.",
        cause: "The user has no subscription with this id. It may have been forgotten because the push service said that it is gone.",
        remedy: "`GET /v1/notifications/push/subscriptions` lists the user's subscriptions. Subscribe anew if the browser is to get pushes.";
    AudienceNotFound = 404017, "Audience not found.",
        cause: "No audience of this type, or of this type and target, is declared. One whose members were set with the API alone is not declared.",
        remedy: "Check the name: `relais audience list` shows what is declared. Declare a new one with `relais apply`.";
    NotificationSourceNotFound = 404018, "Notification source not found.",
        cause: "No notification source with this name is declared.",
        remedy: "Check the name: `relais notification source list` shows the sources. Declare a new one with `relais apply`.";
    MethodNotAllowed = 405001, "This address does not take that method.",
        cause: "The path exists, but not with this HTTP method.",
        remedy: "Use a method that `/docs` lists for the path.";
    RequestTimeout = 408001, "The request took too long to arrive.",
        cause: "The body of the request did not arrive within `server.request_timeout`. The server closes the connection.",
        remedy: "Send the request again, with a smaller body or over a faster connection. The operator raises `server.request_timeout` if clients are slow.";
    IdempotencyKeyReused = 409001, "The Idempotency-Key was used with another request.",
        cause: "The client used the same `Idempotency-Key` on this service before, for a request with another body.",
        remedy: "Use a new key for each new request, and send the identical body when you repeat one. A key is remembered for `tasks.idempotency_age`.";
    TaskEnded = 409002, "The task has already ended.",
        cause: "The task to cancel has already succeeded or failed.",
        remedy: "Nothing needs to be done: the task does not run any more. `details` says how it ended.";
    Conflict = 409003, "The change contradicts what is there.",
        cause: "The request is valid, but the present state does not allow it. Examples: a service to delete has unfinished tasks, a task to retry has not ended, tasks to claim are handed out by the broker, the members of an audience are declared.",
        remedy: "Read the reason in `details`, change the state that it names, and send the request again.";
    BatchClosed = 409004, "The batch is closed.",
        cause: "A task was submitted with the `batchId` of a batch that takes no more tasks: it was closed or cancelled, or was not created with `open`.",
        remedy: "Create a new batch with `open`, and close it only after its last task was submitted.";
    NotificationIdTaken = 409005, "The id belongs to another notification.",
        cause: "A message with this id, or of a call with this `Idempotency-Key`, is stored already and says something else.",
        remedy: "Give each message an id of its own, or none.";
    NotificationState = 409006, "The state of the notification does not allow it.",
        cause: "Only a message of the error log that has not expired can be sent again, and only one that was not withdrawn can be replaced.",
        remedy: "Look at its status. Emit a new message instead.";
    PushTokenUsed = 409007, "The token of the push has been used.",
        cause: "The user has acknowledged the message already, by this token or otherwise.",
        remedy: "Nothing needs to be done.";
    PushEndpointTaken = 409008, "The endpoint belongs to another push subscription.",
        cause: "Another user has subscribed with this endpoint and other keys.",
        remedy: "Send the keys of the browser that has the endpoint, or let it subscribe anew.";
    BodyTooLarge = 413001, "The request is too large.",
        cause: "The request body has more bytes than `server.max_body_bytes`. The server closes the connection.",
        remedy: "Send less: pass a reference to large data, or divide a list of tasks. The operator raises `server.max_body_bytes`.";
    WrongContentType = 415001, "The content type must be application/json.",
        cause: "The request has a body, and its `Content-Type` is missing or not `application/json`.",
        remedy: "Send `Content-Type: application/json`.";
    ServiceFull = 429001, "Too many service requests",
        cause: "The service has as many tasks that wait for a worker as its `capacity` allows. Tasks that are due later count.",
        remedy: "Wait as long as `Retry-After` says, then submit again with the same `Idempotency-Key`. The operator adds workers or raises the `capacity` of the service.";
    ClientFull = 429002, "Too many service requests for the clientId.",
        cause: "The client has as many tasks that wait for a worker on this service as the `capacity` of its authorization allows. Tasks that are due later count.",
        remedy: "Wait as long as `Retry-After` says, then submit again with the same `Idempotency-Key`. The operator adds workers or raises the `capacity` of the authorization.";
    TooManyRequests = 429003, "Too many requests at once for the clientId.",
        cause: "This process is answering `server.max_requests_per_client` requests of the client already. Long-polls and event streams count.",
        remedy: "Wait as long as `Retry-After` says, and keep fewer long-polls and streams open. The operator raises `server.max_requests_per_client` or starts more processes.";
    TooManyChecks = 429004, "Too many secrets are waiting to be checked. Try again later.",
        cause: "Too many secrets wait to be checked: in all, for this client or from this address. Secrets that were checked a short time ago do not wait.",
        remedy: "Wait as long as `Retry-After` says. Look for a caller that repeats a wrong secret. The operator sets `auth.cache_size` above the number of clients, raises `auth.bcrypt_parallel`, and names reverse proxies in `server.trusted_proxies`.";
    TooManyLinks = 429005, "Too many links are open.",
        cause: "The user, or the address, has as many open links as it may have (`notifications.links_per_user`, `notifications.links_per_address`).",
        remedy: "Close links that are not used. The browser library shares one link between all tabs.";
    TooManyPushSubscriptions = 429006, "The user has too many push subscriptions.",
        cause: "The user has as many subscriptions as `notifications.push_subscriptions_per_user` allows.",
        remedy: "Remove one that is not used: `DELETE /v1/notifications/push/subscriptions/{id}`.";
    Internal = 500001, "Internal Server Error",
        cause: "The server met a fault of its own: a handler panicked, or the database refused a statement.",
        remedy: "The operator reads the server's log, which has the details. It is not known whether the request had an effect; repeat a submission with the same `Idempotency-Key`.";
    StoreUnavailable = 503001, "The store is unavailable. Try again later.",
        cause: "The database does not answer, is read-only, or no connection became free within `database.acquire_timeout`. It also happens in the first moments after the start.",
        remedy: "Wait as long as `Retry-After` says, then send the request again with the same `Idempotency-Key`. The operator checks the database, `database.url` and `database.max_connections`.";
    Overloaded = 503002, "Too much is waiting to be stored. Try again later.",
        cause: "More submissions or worker messages wait to be stored than `batching.queue` allows, or 100,000 claims wait for tasks.",
        remedy: "Wait as long as `Retry-After` says, then send the request again. The operator makes the database faster, starts more processes, or raises `batching.queue`.";
    Stopping = 503003, "The server is stopping. Try another one.",
        cause: "The process was asked to stop and takes no new work.",
        remedy: "Send the request again: a load balancer gives it to another process. Let it take the process out of service as soon as `/readyz` fails.";
    BrokerUnavailable = 503004, "The broker is unavailable. Try again later.",
        cause: "The request needs the broker (dead letters), and the broker does not answer, or this server has none.",
        remedy: "Wait as long as `Retry-After` says. The operator checks RabbitMQ and `broker.url`; the metric `relais_broker_up` and `GET /admin/broker` show the connection.";
    BusUnavailable = 503005, "The event bus is unavailable. Try again later.",
        cause: "The event bus does not run in this process, or what carries it between processes (Redis or PostgreSQL) failed.",
        remedy: "Wait as long as `Retry-After` says. The operator checks `events.enabled`, `events.mode` and `redis.url`; `relais events stats` shows the state of the bus.";
    NotReady = 503006, "The server is not ready yet.",
        cause: "`/readyz` was asked before the file in `declarations.file` was applied for the first time.",
        remedy: "Wait and ask again. If it lasts, the server's log says what is wrong with the file.";
    ValidationBusy = 503007, "Too much is waiting to be validated. Try again later.",
        cause: "Too many bodies wait for validation, in all (`validation.waiting`) or of this client (`validation.waiting_per_client`), or the validation did not begin within `validation.timeout`.",
        remedy: "Wait as long as `Retry-After` says, then submit again. The operator raises `validation.parallel`, or simplifies schemas that take long.";
    OutboxUnavailable = 503008, "The outbox's database is unavailable. Try again later.",
        cause: "The request needs the database that has the outbox's table, and that database does not answer or refuses what Relais asks.",
        remedy: "Read the reason in `details`. The operator checks the database, the `databaseUrl` of the outbox and the rights of its user.";
    CaptureUnavailable = 503009, "The captured database is unavailable. Try again later.",
        cause: "The request needs the database whose tables are captured, and that database does not answer or refuses what Relais asks.",
        remedy: "Read the reason in `details`. The operator checks the database, the `databaseUrl` of the capture and the rights of its user.";
}

impl ErrorNumber {
    /// The HTTP status it goes with.
    pub const fn status(self) -> u16 {
        (self.number() / 1000) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_used_once_and_starts_with_its_status() {
        let mut numbers: Vec<u32> = ErrorNumber::ALL.iter().map(|n| n.number()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ErrorNumber::ALL.len());
        assert!(ErrorNumber::ALL.iter().all(|n| (400..600).contains(&n.status())));
    }

    #[test]
    fn each_number_says_when_it_happens_and_what_to_do() {
        for number in ErrorNumber::ALL {
            for text in [number.cause(), number.remedy()] {
                assert!(text.starts_with(|c: char| c.is_ascii_uppercase() || c == '`'), "{number:?}: {text:?}");
                assert!(text.ends_with('.'), "{number:?}: {text:?}");
                assert_eq!(text.matches('`').count() % 2, 0, "{number:?}: {text:?}");
            }
        }
    }
}
