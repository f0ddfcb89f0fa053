"""Requests to other machines.

deadline.py   a call that returns or raises in time, whatever the other side does
http.py       one HTTP request: no redirects, proxies and certificates from the environment
secrets.py    addresses and tokens are replaced in every message
"""
