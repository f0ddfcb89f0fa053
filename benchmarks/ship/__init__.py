"""Sending a run to a real MLflow on PostgreSQL while everything dies: `scripts/bench ship`.

servers.py     PostgreSQL and MLflow as processes of this benchmark, killed and started again
__main__.py    a run that is shipped while server, database and shipper are killed
"""
