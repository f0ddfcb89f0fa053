"""Pages of live runs over HTTP, read-only.

    journals --> Hub (one thread observes all runs) --> RunFeed: line in the fleet, new records
                                                        |
    browser  <-- RunServer (a thread per connection) <--'   pages, server-sent events

run_feed     one run: what it adds up to, who needs attention, what is new
hub          all runs of the given folders, polled by one thread
http_server  requests to pages and streams; who may read: host, origin, token
"""
