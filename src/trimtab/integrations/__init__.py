"""Where trimtab meets other software.

sinks/       trackers and Prometheus: one file each
alerts/      messages to people: webhook, chat, pager, e-mail, a command
shipper/     the process that follows a journal and feeds sinks and alerts
transport/   requests with a hard deadline, and no secret in any message
"""
