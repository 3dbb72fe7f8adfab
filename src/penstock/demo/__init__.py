"""`penstock demo`: the whole product for a minute, with processes killed and everything counted.

A generator sends card transactions and page events and keeps its own count; two consumers judge and count them; a
pipeline on Spark counts the views of each page; a consumer, the driver and the broker are killed meanwhile. The results
are compared with what the generator says it sent: that decides the exit code. Each part is a process of its own, which
belongs to the demo and ends with it.
"""
