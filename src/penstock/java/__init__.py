"""Java for the parts that run on it: Spark, and the brokers of `penstock cluster`.

`installed` finds the Java of this machine, `downloads` has the cache folder and runs the programs that fill it.
"""
