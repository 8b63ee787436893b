//! All that the dashboard says, in English and in French: one catalogue, so that nothing is said in one language only.

use relais_engine::OperatorRole;

use crate::gate::Theme;

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    English,
    French,
}

impl Language {
    pub(crate) const ALL: [Self; 2] = [Self::English, Self::French];

    pub(crate) const fn code(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::French => "fr",
        }
    }

    /// Its own name for itself.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::English => "English",
            Self::French => "Français",
        }
    }

    pub(crate) fn parse(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.code() == code)
    }

    /// The one of a browser's that is known and that it likes best.
    pub(crate) fn accepted(header: &str) -> Option<Self> {
        let liked = header.split(',').filter_map(|entry| {
            let (name, weight) = entry.split_once(';').unwrap_or((entry, ""));
            let weight = weight.trim().strip_prefix("q=").map_or(Some(1.0), |weight| weight.parse::<f64>().ok())?;
            let code = name.trim().split('-').next().unwrap_or_default().to_ascii_lowercase();
            Some((Self::parse(&code)?, weight))
        });
        let best =
            liked.filter(|(_, weight)| *weight > 0.0).reduce(|best, next| if next.1 > best.1 { next } else { best });
        best.map(|(language, _)| language)
    }

    pub(crate) const fn words(self) -> &'static Words {
        match self {
            Self::English => &ENGLISH,
            Self::French => &FRENCH,
        }
    }

    /// What stands between thousands.
    pub(crate) const fn thousands(self) -> &'static str {
        match self {
            Self::English => ",",
            Self::French => "\u{202f}",
        }
    }
}

macro_rules! catalogue {
    ($($key:ident: $english:literal, $french:literal;)*) => {
        /// All that is said, in one language.
        #[derive(Debug)]
        pub(crate) struct Words {
            $(pub(crate) $key: &'static str,)*
        }

        static ENGLISH: Words = Words { $($key: $english,)* };
        static FRENCH: Words = Words { $($key: $french,)* };

        #[cfg(test)]
        const PAIRS: &[(&str, &str, &str)] = &[$((stringify!($key), $english, $french),)*];
    };
}

catalogue! {
    overview: "Overview", "Aperçu";
    tasks: "Tasks", "Tâches";
    services: "Services", "Services";
    workers: "Workers", "Workers";
    schedules: "Schedules", "Planifications";
    callbacks: "Callbacks", "Rappels";
    dead_letters: "Dead letters", "Messages écartés";
    clients: "Clients", "Clients";
    event_bus: "Event bus", "Bus d’événements";
    audit_log: "Audit log", "Journal d’audit";
    navigation: "Main navigation", "Navigation principale";
    skip: "Skip to content", "Aller au contenu";
    search: "Search tasks", "Chercher des tâches";
    search_hint: "service:resize status:failure since:1h", "service:resize status:failure since:1h";
    live: "Changes by itself", "Se met à jour tout seul";
    updated: "Updated", "Mis à jour";
    keys: "Keyboard", "Clavier";
    key_search: "Search", "Chercher";
    key_rows: "Down and up the list", "Descendre et monter dans la liste";
    key_select: "Select the line", "Cocher la ligne";
    key_open: "Open the line", "Ouvrir la ligne";
    key_help: "This help", "Cette aide";
    close: "Close", "Fermer";
    theme_auto: "Theme: as the system has it", "Thème : celui du système";
    theme_light: "Theme: light", "Thème : clair";
    theme_dark: "Theme: dark", "Thème : sombre";
    role_read_only: "read-only", "lecture seule";
    role_operator: "operator", "opérateur";
    role_admin: "admin", "administrateur";
    sign_in: "Sign in", "Se connecter";
    sign_in_hint: "This dashboard asks for an operator’s token.", "Ce tableau de bord demande le jeton d’un opérateur.";
    sign_out: "Sign out", "Se déconnecter";
    everywhere: "everywhere", "partout";
    everywhere_hint: "Sign out of all browsers", "Se déconnecter de tous les navigateurs";
    token: "Token", "Jeton";
    token_hint: "The one that the server’s configuration gives you (admin.token or admin.operators).", "Celui que la configuration du serveur vous donne (admin.token ou admin.operators).";
    wrong_token: "Nobody has this token.", "Personne n’a ce jeton.";
    too_many_tries: "Too many tries. Wait a minute.", "Trop d’essais. Patientez une minute.";
    refused: "Not allowed", "Accès refusé";
    forged: "This form does not come from this dashboard, or is too old. Go back, load the page again and try once more.", "Ce formulaire ne vient pas de ce tableau de bord, ou il est trop ancien. Revenez en arrière, rechargez la page et recommencez.";
    only_here: "No operator has a token yet, so the dashboard answers to its own machine only. Set admin.token (RELAIS_ADMIN_TOKEN) to use it from elsewhere.", "Aucun opérateur n’a encore de jeton : le tableau de bord ne répond qu’à sa propre machine. Définissez admin.token (RELAIS_ADMIN_TOKEN) pour y accéder d’ailleurs.";
    not_allowed: "This needs the role {role}.", "Cela demande le rôle {role}.";
    not_done: "Not done", "Pas fait";
    done: "Done", "Fait";
    gone: "There is nothing here: it may have been purged or removed.", "Il n’y a rien ici : cela a pu être purgé ou supprimé.";
    store_away: "The database does not answer. Try again in a moment.", "La base de données ne répond pas. Réessayez dans un instant.";
    internal: "Something went wrong; the server’s log says what.", "Quelque chose n’a pas marché ; le journal du serveur dit quoi.";
    problems: "Problems", "Problèmes";
    all_well: "All is well", "Tout va bien";
    trouble_broker: "The broker does not take messages: {why}", "Le courtier ne prend pas de messages : {why}";
    trouble_bus: "The event bus is not connected: {why}", "Le bus d’événements n’est pas connecté : {why}";
    trouble_part: "The {part} are in trouble: {why}", "Les {part} ont un problème : {why}";
    trouble_no_worker: "{service}: {n} tasks wait and no worker has been heard of", "{service} : {n} tâches attendent et aucun worker ne s’est manifesté";
    trouble_slow: "{service}: the oldest task has waited for {t}", "{service} : la plus ancienne tâche attend depuis {t}";
    trouble_failing: "{service}: {n} of {of} tasks failed in the last 15 minutes", "{service} : {n} tâches sur {of} ont échoué ces 15 dernières minutes";
    trouble_full: "{service}: {n} of {of} places are taken", "{service} : {n} places sur {of} sont prises";
    trouble_paused: "{service} is paused; {n} tasks wait", "{service} est en pause ; {n} tâches attendent";
    trouble_silent: "{worker} ({service}) is late to say that it is alive; it has {n} tasks", "{worker} ({service}) tarde à donner signe de vie ; il a {n} tâches";
    trouble_overdue: "{schedule} should have run {t} ago", "{schedule} aurait dû s’exécuter il y a {t}";
    trouble_refused: "{schedule}: its last run was refused: {why}", "{schedule} : sa dernière exécution a été refusée : {why}";
    trouble_callbacks: "{n} callback endpoints do not answer and are left alone for now", "{n} destinataires de rappels ne répondent pas et sont laissés tranquilles pour l’instant";
    trouble_lost: "{service}: its queue at the broker is empty, but tasks wait that were published; relais service redispatch {service} publishes them again", "{service} : sa file chez le broker est vide, mais des tâches publiées attendent ; relais service redispatch {service} les publie à nouveau";
    trouble_letters: "{service}: {n} messages of workers could not be understood", "{service} : {n} messages de workers n’ont pas été compris";
    pending: "Pending", "En attente";
    later: "Later", "Plus tard";
    running: "Running", "En cours";
    success: "Success", "Réussie";
    failure: "Failure", "Échouée";
    cancelled: "Cancelled", "Annulée";
    paused: "Paused", "En pause";
    done_per_minute: "Done / min", "Finies / min";
    failed_per_minute: "Failed / min", "Échecs / min";
    n_busy: "{n} busy", "{n} au travail";
    broker: "Broker", "Courtier";
    no_services: "No service is declared yet", "Aucun service n’est encore déclaré";
    no_services_hint: "Declare one with `relais service put`, a file or the admin API.", "Déclarez-en un avec `relais service put`, un fichier ou l’API d’administration.";
    service: "Service", "Service";
    waiting_tasks: "Backlog", "En file";
    oldest: "Oldest", "Plus ancienne";
    last_quarter: "Last 15 min", "15 dernières min";
    and_later: "+ {n} later", "+ {n} plus tard";
    spark_label: "{good} done, {bad} failed in the last 15 minutes", "{good} finies, {bad} échouées ces 15 dernières minutes";
    ago: "{t} ago", "il y a {t}";
    in_time: "in {t}", "dans {t}";
    progress: "Progress", "Avancement";
    pages: "Pages", "Pages";
    newest: "Newest", "Plus récentes";
    older: "Older", "Plus anciennes";
    status: "Status", "État";
    any: "Any", "Tous";
    any_time: "Any time", "Toujours";
    last_time: "last {t}", "depuis {t}";
    tasks_match: "tasks", "tâches";
    unknown_words: "Not understood: {words}. Known: {known}", "Pas compris : {words}. Mots connus : {known}";
    no_tasks: "No task matches", "Aucune tâche ne correspond";
    no_tasks_hint: "Take a word out of the search, or look further back.", "Retirez un mot de la recherche, ou remontez plus loin.";
    task: "Task", "Tâche";
    client: "Client", "Client";
    submitted: "Submitted", "Soumise";
    took: "Took", "Durée";
    attempt: "Attempt", "Essai";
    about: "About", "À propos";
    select: "Select", "Cocher";
    select_page: "Select all on this page", "Tout cocher sur cette page";
    failed_attempts: "Attempts that failed", "Essais échoués";
    which: "Which tasks", "Quelles tâches";
    chosen: "Selected", "Cochées";
    all_matching: "All that match ({n})", "Toutes celles qui correspondent ({n})";
    narrow_first: "Name a service, a client, a correlation, a parent or a batch to act on all that match.", "Nommez un service, un client, une corrélation, un parent ou un lot pour agir sur toutes.";
    retry: "Retry", "Relancer";
    cancel: "Cancel", "Annuler";
    cancel_tasks: "Cancel them", "Les annuler";
    nothing_chosen: "No task was selected.", "Aucune tâche n’est cochée.";
    retry_title: "Retry {n} tasks?", "Relancer {n} tâches ?";
    cancel_title: "Cancel {n} tasks?", "Annuler {n} tâches ?";
    retry_means: "Each begins anew, with all its retries; what it did before stays in its history.", "Chacune repart de zéro, avec tous ses essais ; ce qu’elle a fait reste dans son historique.";
    cancel_means: "Those that wait are never handed out; those that run are taken away from their workers.", "Celles qui attendent ne seront jamais distribuées ; celles en cours sont retirées à leurs workers.";
    first_of_them: "The newest of them.", "Les plus récentes d’entre elles.";
    so_far: "{n} so far", "{n} pour l’instant";
    so_far_hint: "There are more; go on when you are ready.", "Il en reste ; continuez quand vous voulez.";
    leave: "Leave it", "Ne rien faire";
    task_title: "Task {id}", "Tâche {id}";
    facts: "Facts", "Faits";
    timeline: "Timeline", "Chronologie";
    error: "Error", "Erreur";
    request: "Request", "Requête";
    response: "Response", "Réponse";
    masked: "What the service’s schema declares secret is masked.", "Ce que le schéma du service déclare secret est masqué.";
    cancel_question: "It is taken away from its worker, and no result counts any more.", "Elle est retirée à son worker, et aucun résultat ne comptera plus.";
    why_waiting: "Why is it waiting?", "Pourquoi attend-elle ?";
    may_start: "It may start", "Elle pourrait démarrer";
    why_scheduled: "It was asked for at {date}.", "Elle est demandée pour le {date}.";
    why_retry: "{n} attempts failed; it is tried again at {date}.", "{n} essais ont échoué ; elle est retentée le {date}.";
    why_all_succeeded: "It starts when {n} other tasks have succeeded; it fails if one of them does not.", "Elle démarre quand {n} autres tâches auront réussi ; elle échoue si l’une n’y arrive pas.";
    why_all_ended: "It starts when {n} other tasks have ended.", "Elle démarre quand {n} autres tâches seront terminées.";
    why_any_ended: "It starts when one of {n} other tasks has ended.", "Elle démarre dès que l’une de {n} autres tâches sera terminée.";
    why_paused: "Its service is paused.", "Son service est en pause.";
    why_busy: "{n} of at most {of} tasks of its service run already.", "{n} tâches de son service, sur {of} au plus, sont déjà en cours.";
    why_client_busy: "{n} of at most {of} tasks of its client run already.", "{n} tâches de son client, sur {of} au plus, sont déjà en cours.";
    why_rate: "No more than {n} start in {t}.", "Pas plus de {n} démarrages en {t}.";
    why_broker: "The broker does not take it: {why}", "Le courtier ne la prend pas : {why}";
    why_no_worker: "No worker of its service has been heard of in the last minute.", "Aucun worker de son service ne s’est manifesté depuis une minute.";
    why_behind: "It is number {n} in its queue.", "Elle est numéro {n} dans sa file.";
    why_next: "It is next.", "C’est la prochaine.";
    worker: "Worker", "Worker";
    n_failed: "{n} failed", "{n} échoués";
    n_lost: "{n} lost", "{n} perdus";
    position: "Position", "Position";
    priority: "Priority", "Priorité";
    correlation: "Correlation", "Corrélation";
    chain_hint: "all of the chain", "toute la chaîne";
    lease: "Lease expires", "Fin du bail";
    deadline: "Deadline", "Échéance";
    callback: "Callback", "Rappel";
    told_pending: "To be sent", "À envoyer";
    told_delivered: "Delivered", "Remis";
    told_failed: "Failed", "Échoué";
    asked_for: "Asked for", "Demandée pour";
    tried_again: "Tried again", "Retentée";
    started: "Started", "Démarrée";
    not_started: "Not started yet", "Pas encore démarrée";
    ended: "Ended", "Terminée";
    still_running: "Still running", "Toujours en cours";
    attempts: "Attempts", "Essais";
    outcome: "Outcome", "Résultat";
    outcome_running: "running", "en cours";
    outcome_success: "success", "réussi";
    outcome_failure: "failure", "échoué";
    outcome_cancelled: "cancelled", "annulé";
    outcome_returned: "given back", "rendu";
    outcome_lost: "lost", "perdu";
    linked: "Linked tasks", "Tâches liées";
    parent: "Part of", "Fait partie de";
    children: "Its parts", "Ses parties";
    batch: "Batch", "Lot";
    batch_title: "Batch {id}", "Lot {id}";
    batch_open: "Open", "Ouvert";
    closed: "Closed", "Fermé";
    close_batch_question: "No more tasks are taken into it; it ends with those that it has.", "Plus aucune tâche n’y entre ; il se termine avec celles qu’il a.";
    cancel_batch_question: "It is closed, and all of its tasks that have not ended are cancelled.", "Il est fermé, et toutes ses tâches inachevées sont annulées.";
    n_of_ended: "{n} of {of} tasks have ended", "{n} tâches sur {of} sont terminées";
    waits_for: "Waits for", "Attend";
    waited_for_by: "Waited for by", "Attendue par";
    not_ended: "not ended yet", "pas encore terminée";
    when_all_succeeded: "(all to succeed)", "(que toutes réussissent)";
    when_all_ended: "(all to end)", "(que toutes se terminent)";
    when_any_ended: "(one to end)", "(que l’une se termine)";
    more_of_them: "There are more: all of them", "Il y en a d’autres : toutes";
    as_a_list: "As a list", "En liste";
    said_closed: "Closed.", "Fermé.";
    said_batch_cancelled: "It is closed, and its unfinished tasks are cancelled.", "Il est fermé, et ses tâches inachevées sont annulées.";
    outcome_unknown: "Not known", "Inconnu";
    outcome_unknown_hint: "It is being done, or the process died over it: it may or may not have been done.", "C’est en cours, ou le processus en est mort : cela a pu être fait ou non.";
    transport: "Transport", "Transport";
    builtin: "Built-in", "Intégré";
    limits: "Limits", "Limites";
    shares: "Shares per client", "Parts par client";
    no_shares: "Nobody has unfinished tasks here.", "Personne n’a de tâche inachevée ici.";
    how_to_call: "How to call it", "Comment l’appeler";
    schema: "JSON Schema", "Schéma JSON";
    declared: "Declaration", "Déclaration";
    pause: "Pause", "Suspendre";
    resume: "Resume", "Reprendre";
    pause_question: "Tasks are still taken in, but not handed out. Running ones go on.", "Les tâches sont encore acceptées, mais plus distribuées. Celles en cours continuent.";
    no_limit: "no limit", "sans limite";
    limit_capacity: "Pending tasks at most", "Tâches en attente au plus";
    limit_window: "At the broker at most", "Chez le courtier au plus";
    limit_running: "Running at most", "En cours au plus";
    limit_client: "Running at most, per client", "En cours au plus, par client";
    limit_rate: "Starts at most", "Démarrages au plus";
    limits_hint: "In force at once, for all processes. Empty means no limit. A declaration file that says otherwise wins when it changes.", "En vigueur aussitôt, pour tous les processus. Vide : sans limite. Un fichier de déclarations qui dit autre chose l’emporte quand il change.";
    limits_window_hint: "With a broker, what runs, per client, and starts can be limited only where there is a limit on what is at the broker.", "Avec un courtier, on ne peut limiter ce qui est en cours, par client, et les démarrages que s’il y a une limite chez le courtier.";
    save: "Save", "Enregistrer";
    state: "State", "État";
    free_slots: "Asks for", "Demande";
    heard: "Heard", "Entendu";
    version: "Version", "Version";
    worker_waiting: "waiting", "attend";
    worker_busy: "busy", "occupé";
    worker_silent: "silent", "muet";
    worker_quiet: "quiet", "au repos";
    nameless: "(no name)", "(sans nom)";
    heard_elsewhere: "Known only by its tasks", "Connu seulement par ses tâches";
    and_more: "and {n} more", "et {n} autres";
    no_workers: "No worker has been heard of", "Aucun worker ne s’est manifesté";
    no_workers_hint: "Start one with `relais worker --service NAME -- COMMAND`, or with a library.", "Démarrez-en un avec `relais worker --service NOM -- COMMANDE`, ou avec une bibliothèque.";
    workers_hint: "Those that any server process has heard of; the others tell of theirs every ten seconds.", "Ceux dont un processus du serveur, quel qu’il soit, a entendu parler ; les autres disent les leurs toutes les dix secondes.";
    outboxes: "Outboxes", "Boîtes d’envoi";
    outbox: "Outbox", "Boîte d’envoi";
    captures: "Captures", "Captures";
    capture: "Capture", "Capture";
    changes: "Changes", "Changements";
    snapshot_rows: "Snapshot rows", "Lignes d’instantané";
    lag: "Lag", "Retard";
    retained_wal: "Retained WAL", "WAL retenu";
    confirmed_up_to: "Confirmed up to", "Confirmé jusqu’à";
    tables_to_read: "Tables to read", "Tables à lire";
    activity: "Activity", "Activité";
    no_processes: "No process captures it.", "Aucun processus ne la capture.";
    no_captures: "No capture is declared", "Aucune capture n’est déclarée";
    no_captures_hint: "Declare one in a file, and apply it with `relais apply`.", "Déclarez-en une dans un fichier, puis appliquez-le avec `relais apply`.";
    pause_capture_question: "Nothing is published until it is resumed. The slot stays: the database keeps its WAL meanwhile.", "Rien n’est publié jusqu’à la reprise. Le slot reste : la base garde son WAL entre-temps.";
    take_snapshot: "Snapshot", "Instantané";
    snapshot_question: "All rows of its tables are published again, beside the stream.", "Toutes les lignes de ses tables sont publiées à nouveau, à côté du flux.";
    said_snapshot_asked: "The tables are read again.", "Les tables sont relues.";
    flow: "From, to", "De, vers";
    unpublished: "Unpublished", "Non publiés";
    parked: "Parked", "En attente d’une décision";
    relays: "Relays", "Relais";
    no_relays: "No process publishes it.", "Aucun processus ne la publie.";
    no_outboxes: "No outbox is declared", "Aucune boîte d’envoi n’est déclarée";
    no_outboxes_hint: "Declare one in a file, and apply it with `relais apply`.", "Déclarez-en une dans un fichier, puis appliquez-le avec `relais apply`.";
    in_trouble: "In trouble", "En difficulté";
    failed_tries: "Failed tries", "Essais échoués";
    parked_events: "Parked events", "Événements en attente d’une décision";
    parked_hint: "They failed as often as allowed. Later events of their keys wait until you decide.", "Ils ont échoué autant de fois que permis. Les événements suivants de leur clé attendent votre décision.";
    nothing_parked: "Nothing is parked.", "Rien n’attend de décision.";
    retry_all: "Retry all", "Tout relancer";
    skip_all: "Skip all", "Tout abandonner";
    skip_event: "Skip", "Abandonner";
    skip_question: "What is skipped is never published, and later events of its key go on.", "Ce qui est abandonné n’est jamais publié, et les événements suivants de sa clé continuent.";
    pause_outbox_question: "Nothing is published until it is resumed; its rows wait.", "Rien n’est publié jusqu’à la reprise ; les lignes attendent.";
    key: "Key", "Clé";
    reason: "Reason", "Raison";
    process: "Process", "Processus";
    mode: "Mode", "Mode";
    partitions: "Partitions", "Partitions";
    said_events_retried: "{n} events are retried.", "{n} événements sont relancés.";
    said_events_skipped: "{n} events are skipped.", "{n} événements sont abandonnés.";
    schedule: "Schedule", "Planification";
    when: "When", "Quand";
    next_run: "Next run", "Prochaine";
    last_run: "Last run", "Dernière";
    next_runs: "Next runs", "Prochaines exécutions";
    runs: "Runs", "Exécutions";
    runs_skipped: "Left out (overlap)", "Sautées (chevauchement)";
    runs_refused: "Refused", "Refusées";
    runs_missed: "Missed", "Manquées";
    last_error: "Last refusal", "Dernier refus";
    actions: "Actions", "Actions";
    run_now: "Run now", "Exécuter";
    run_question: "A task is submitted now, besides the other runs.", "Une tâche est soumise maintenant, en plus des autres exécutions.";
    no_schedules: "No schedule is declared", "Aucune planification n’est déclarée";
    no_schedules_hint: "Declare one with `relais schedule put`.", "Déclarez-en une avec `relais schedule put`.";
    event: "Event", "Événement";
    target: "Target", "Destination";
    tries: "Tries", "Essais";
    created: "Created", "Créé";
    next_try: "Next try", "Prochain essai";
    send_again: "Send again", "Renvoyer";
    resend_failed: "Send failed ones again", "Renvoyer ceux qui ont échoué";
    failed_since: "Failed in the last", "Échoués depuis";
    answer: "Answer", "Réponse";
    date: "Date", "Date";
    no_callbacks: "No callback matches", "Aucun rappel ne correspond";
    no_callbacks_hint: "A consumer asks for one with `callback` in its submission.", "Un consommateur en demande un avec `callback` dans sa soumission.";
    no_broker: "No service uses a broker", "Aucun service n’utilise de courtier";
    no_broker_hint: "Messages are set aside only where workers speak over RabbitMQ.", "Des messages ne sont écartés que là où les workers parlent par RabbitMQ.";
    no_letters: "No message was set aside", "Aucun message n’a été écarté";
    no_letters_hint: "What workers say has been understood.", "Ce que disent les workers a été compris.";
    n_letters: "{n} messages were set aside", "{n} messages ont été écartés";
    replay: "Replay", "Rejouer";
    discard: "Discard", "Jeter";
    discard_question: "They are gone for good.", "Ils seront perdus pour de bon.";
    consumes: "Consumes", "Consomme";
    works: "Works for", "Travaille pour";
    destinations: "Destinations", "Destinations";
    notifications: "Notifications", "Notifications";
    notification: "Notification", "Notification";
    no_notifications_here: "This process has no notifications", "Ce processus n’a pas de notifications";
    no_notifications_here_hint: "It needs the role `api` or `notifications` (server.roles).", "Il lui faut le rôle `api` ou `notifications` (server.roles).";
    no_notifications: "No notification matches", "Aucune notification ne correspond";
    no_notifications_hint: "A client with the right `emit` sends them with POST /v1/notifications.", "Un client qui a le droit `emit` les envoie par POST /v1/notifications.";
    nothing_failed: "The error log is empty", "Le journal d’erreurs est vide";
    nothing_failed_hint: "Whatever must be acknowledged has been, or is still being sent.", "Tout ce qui doit être acquitté l’a été, ou est encore envoyé.";
    error_log: "Error log", "Journal d’erreurs";
    trouble_notifications: "{n} notifications of the last 7 days are in the error log: not everybody has acknowledged them", "{n} notifications des 7 derniers jours sont dans le journal d’erreurs : tous ne les ont pas acquittées";
    notification_open: "Open", "Ouverte";
    notification_acknowledged: "Acknowledged", "Acquittée";
    notification_failed: "Failed", "En échec";
    notification_expired: "Expired", "Expirée";
    notification_withdrawn: "Withdrawn", "Retirée";
    notification_source: "Notification source", "Source de notifications";
    notification_sources: "Notification sources", "Sources de notifications";
    no_sources: "No notification source is declared", "Aucune source de notifications n’est déclarée";
    no_sources_hint: "Declare one in a file, and apply it with `relais apply`: events of the bus become notifications.", "Déclarez-en une dans un fichier, puis appliquez-le avec `relais apply` : des événements du bus deviennent des notifications.";
    emitted_count: "Became notifications", "Devenus notifications";
    known_count: "Were so already", "L’étaient déjà";
    passed_over: "Passed over", "Laissés de côté";
    failed_count: "Failed", "En échec";
    nobody_hears: "No process hears its events.", "Aucun processus n’entend ses événements.";
    pause_source_question: "What happens until it is resumed does not become notifications, then or later.", "Ce qui se passe jusqu’à la reprise ne devient pas des notifications, ni alors ni plus tard.";
    audiences: "Audiences", "Audiences";
    no_audiences: "No audience is declared", "Aucune audience n’est déclarée";
    no_audiences_hint: "Members are set with the API, or declared in a file that is applied with `relais apply`.", "Les membres sont donnés par l’API, ou déclarés dans un fichier appliqué par `relais apply`.";
    members: "Members", "Membres";
    audience_target: "Target", "Cible";
    being_removed: "being removed", "en cours de retrait";
    members_of_target: "Members of a target", "Membres d’une cible";
    show_members: "Show members", "Afficher les membres";
    owned_by_declaration: "Its members are declared: only the declaration changes them.", "Ses membres sont déclarés : seule la déclaration les change.";
    owned_by_api: "It is not declared: clients with the right `audience` and operators change its members.", "Elle n’est pas déclarée : les clients qui ont le droit `audience` et les opérateurs changent ses membres.";
    no_members_yet: "It has no members.", "Elle n’a pas de membres.";
    open_links: "Open links", "Liens ouverts";
    open_links_hint: "Of the process that shows this page.", "Du processus qui affiche cette page.";
    no_links: "No web page has a link to this process.", "Aucune page web n’a de lien avec ce processus.";
    connected_users: "Connected users", "Utilisateurs connectés";
    counts_hint: "Numbers beside a status are those of the newest {n} notifications; failed ones are all counted, up to {most}.", "Les nombres près d’un état sont ceux des {n} dernières notifications ; celles en échec sont toutes comptées, jusqu’à {most}.";
    and_others: "and others", "et d’autres";
    audience: "Audience", "Audience";
    audience_type: "Audience type", "Type d’audience";
    targets: "Targets", "Cibles";
    most_links: "Most links", "Le plus de liens";
    links: "Links", "Liens";
    sender: "From", "De";
    sent_again: "Sent again", "Renvoyée";
    n_of: "{n} of {of}", "{n} sur {of}";
    not_acknowledged: "Not acknowledged by", "Non acquittée par";
    withdraw: "Withdraw", "Retirer";
    withdraw_question: "Pages that show it remove it, and it is not sent any more.", "Les pages qui l’affichent la retirent, et elle n’est plus envoyée.";
    send_test: "Send a test message", "Envoyer un message d’essai";
    send_test_hint: "Everybody in the audience sees it.", "Toute l’audience le voit.";
    targets_hint: "Names, with commas between them.", "Des noms, séparés par des virgules.";
    must_acknowledge: "Must be acknowledged", "À acquitter";
    send: "Send", "Envoyer";
    yes: "yes", "oui";
    no: "no", "non";
    source: "Source", "Source";
    topic: "Topic", "Sujet";
    operation: "Operation", "Opération";
    emitted: "Emitted", "Émise";
    expires: "Expires", "Expire";
    replaced_by: "Replaced by", "Remplacée par";
    backoff: "Backoff", "Espacement";
    ledger: "Ledger", "Registre";
    ledger_hint: "Those who must acknowledge it and have not come first. At most 1,000.", "D’abord ceux qui doivent l’acquitter et ne l’ont pas fait. Au plus 1 000.";
    ledger_empty: "Nobody is awaited, and nothing is recorded: deliveries are recorded where a message must be acknowledged, or of all with notifications.record_all_deliveries.", "Personne n’est attendu et rien n’est consigné : les remises le sont pour les messages à acquitter, ou pour tous avec notifications.record_all_deliveries.";
    user: "User", "Utilisateur";
    awaited: "Awaited", "Attendu";
    deliveries: "Deliveries", "Remises";
    last_delivery: "Last delivery", "Dernière remise";
    n_awaited: "{n} awaited", "{n} attendus";
    said_notification_resent: "It is sent again to those who have not acknowledged it.", "Elle est renvoyée à ceux qui ne l’ont pas acquittée.";
    said_withdrawn: "It is withdrawn.", "Elle est retirée.";
    said_sent: "It is sent.", "Elle est envoyée.";
    no_members: "It must be acknowledged, and no members of its audience are declared.", "Elle doit être acquittée, et aucun membre de son audience n’est déclaré.";
    may_emit: "Sends to", "Envoie à";
    may_change_audience: "Changes members of", "Modifie les membres de";
    tickets_for_user: "Tickets for a user", "Tickets pour un utilisateur";
    tickets_for_user_and: "Tickets for a user and", "Tickets pour un utilisateur et";
    rotate: "New secret", "Nouveau secret";
    rotate_question: "The old secret is worth nothing from then on: whoever uses it is refused.", "L’ancien secret ne vaudra plus rien : qui l’utilise sera refusé.";
    new_secret: "The new secret of {client}", "Le nouveau secret de {client}";
    shown_once: "It is shown this once. Nobody can read it again, only replace it.", "Il n’est montré qu’une fois. Personne ne pourra le relire, seulement le remplacer.";
    noted: "I have noted it", "Je l’ai noté";
    no_clients: "No client is declared", "Aucun client n’est déclaré";
    no_clients_hint: "Declare one with `relais client put`.", "Déclarez-en un avec `relais client put`.";
    published: "Published", "Publiés";
    delivered: "Delivered", "Remis";
    failed: "Failed", "Échoués";
    dropped: "Dropped", "Perdus";
    dead_lettered: "Dead-lettered", "Écartés";
    queued: "Queued", "En file";
    uptime: "Uptime", "Depuis";
    subscriptions: "Subscriptions", "Abonnements";
    nobody_listens: "Nobody listens.", "Personne n’écoute.";
    name: "Name", "Nom";
    patterns: "Patterns", "Motifs";
    kind: "Kind", "Genre";
    channels: "Channels", "Canaux";
    channel: "Channel", "Canal";
    last: "Last", "Dernier";
    no_channels: "Nothing was published yet", "Rien n’a encore été publié";
    no_channels_hint: "Events of tasks are published while somebody follows them.", "Les événements des tâches sont publiés tant que quelqu’un les suit.";
    publish: "Publish an event", "Publier un événement";
    payload: "Payload (JSON)", "Contenu (JSON)";
    who: "Who", "Qui";
    via: "Via", "Par";
    action: "Action", "Action";
    no_audit: "Nobody did anything yet", "Personne n’a encore rien fait";
    no_audit_hint: "All that operators do, here and over the admin API, is written down.", "Tout ce que font les opérateurs, ici et par l’API d’administration, est consigné.";
    said_retried: "{n} tasks are done once more.", "{n} tâches sont relancées.";
    said_cancelled: "{n} tasks are cancelled.", "{n} tâches sont annulées.";
    said_paused: "Paused.", "Mis en pause.";
    said_resumed: "It goes on.", "C’est reparti.";
    said_limits: "The limits are in force.", "Les limites sont en vigueur.";
    said_ran: "A task was submitted.", "Une tâche a été soumise.";
    said_resent: "{n} callbacks are sent again.", "{n} rappels sont renvoyés.";
    said_replayed: "{n} messages are looked at once more.", "{n} messages sont réexaminés.";
    said_discarded: "{n} messages are gone.", "{n} messages sont jetés.";
    said_published: "Published; {n} have it.", "Publié ; {n} l’ont reçu.";
    trouble_instance: "Process {name} has fallen silent with {n} leased tasks", "Le processus {name} ne répond plus, avec {n} tâches prises";
    trouble_undecided: "Process {name} died with {n} leased tasks: decide what becomes of them", "Le processus {name} est mort avec {n} tâches prises : décidez de leur sort";
    processes: "Processes", "Processus";
    process_alive: "alive", "vivant";
    process_undecided: "undecided", "à décider";
    host: "Host", "Hôte";
    crash_policy: "If it dies", "S’il meurt";
    leased: "Leased", "Prises";
    do_again: "Do again", "Refaire";
    do_again_question: "Its tasks are done again by others.", "Ses tâches sont refaites par d’autres.";
    let_fail: "Let fail", "Laisser échouer";
    let_fail_question: "Its tasks fail.", "Ses tâches échouent.";
    said_resolved: "Decided, for {n} tasks.", "Décidé, pour {n} tâches.";
}

impl Words {
    pub(crate) const fn role(&self, role: OperatorRole) -> &'static str {
        match role {
            OperatorRole::ReadOnly => self.role_read_only,
            OperatorRole::Operator => self.role_operator,
            OperatorRole::Admin => self.role_admin,
        }
    }

    pub(crate) const fn theme(&self, theme: Theme) -> &'static str {
        match theme {
            Theme::Auto => self.theme_auto,
            Theme::Light => self.theme_light,
            Theme::Dark => self.theme_dark,
        }
    }

    /// What became of an attempt.
    pub(crate) fn outcome_word<'w>(&'w self, outcome: &'w str) -> &'w str {
        match outcome {
            "running" => self.outcome_running,
            "success" => self.outcome_success,
            "failure" => self.outcome_failure,
            "cancelled" => self.outcome_cancelled,
            "returned" => self.outcome_returned,
            "lost" => self.outcome_lost,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that a text has places for.
    fn places(text: &str) -> Vec<&str> {
        let mut found: Vec<&str> =
            text.split('{').skip(1).filter_map(|rest| rest.split_once('}').map(|(name, _)| name)).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn both_languages_say_everything_and_with_the_same_values() {
        assert!(PAIRS.len() > 100);
        for (key, english, french) in PAIRS {
            assert!(!english.trim().is_empty() && !french.trim().is_empty(), "{key}");
            assert_eq!(places(english), places(french), "{key}");
        }
    }

    #[test]
    fn a_browser_gets_the_language_that_it_likes_best() {
        assert_eq!(Language::accepted("fr-CH, fr;q=0.9, en;q=0.8"), Some(Language::French));
        assert_eq!(Language::accepted("de, en;q=0.5, fr;q=0.7"), Some(Language::French));
        assert_eq!(Language::accepted("en-GB,en"), Some(Language::English));
        assert_eq!(Language::accepted("de"), None);
        assert_eq!(Language::accepted("fr;q=0, en;q=0.1"), Some(Language::English));
    }
}
