"""The quick and the deep check of an archive: is it whole?"""
