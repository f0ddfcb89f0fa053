"""What happens on the host, on the first rank.

recorder.py           the numbers of a step become a record of the journal
batch_memory.py       the token ids of the last batches, and what is unusual about them
resume_facts.py       whether a resume has restored everything
bad_data.py           batches that a relaunched run leaves out
rollback.py           what a person has asked this launch to go back to, and to change
"""
