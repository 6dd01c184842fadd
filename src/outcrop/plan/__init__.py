"""Plans: facts and one memory number -> what is kept, how far ahead, in how many bytes."""
