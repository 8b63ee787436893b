"""An emitter of notifications: who belongs to an audience, a message to it, and a ticket for a web page's user."""

from relais import Audience, Client, Notification, NotificationRetry, Target

with Client() as client:  # RELAIS_URL, RELAIS_CLIENT, RELAIS_SECRET
    client.set_audience("GROUP", "teachers", ["ann", "bob"])
    client.set_audience("STRUCTURE", "school", [Target("teachers", "GROUP")])

    message = Notification(
        {"title": "Room 12 is closed today"},
        Audience("STRUCTURE", ["school"]),
        NotificationRetry(ack_required=True),  # Sent again until each member has acknowledged it.
    )
    sent = client.notify(message, idempotency_key="room-12")
    print(client.notify(message, idempotency_key="room-12") == sent)

    # The page gives it to Relais: as a bearer token, or as `?ticket=`.
    ticket = client.issue_ticket("ann", ttl=8 * 3600)
    print(ticket.ticket != "")

    replaced = client.replace_notification(sent, Notification({"title": "Room 12 is open"}, message.audience))
    client.withdraw_notification(replaced)
    print([state.message.id for state in client.notification_errors().notifications])
