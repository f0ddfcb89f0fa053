"""`trimtab serve`: pages of live runs over HTTP, read-only.

    journals --> Hub (one thread polls all runs) --> RunFeed: summary, new records
                                                        |
    browser  <-- RunServer (a thread per connection) <--'   pages, server-sent events

run_feed     one run: what is new, what it adds up to
run_summary  the line of a run in the fleet: state, who needs attention
hub          all runs of the given folders, polled by one thread
access       who may read: host, origin, token
http_server  requests to pages and streams
"""
