"""Does a reconstruction identify its record among others of its class?"""
