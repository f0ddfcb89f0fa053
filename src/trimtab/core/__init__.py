"""The words of the house: plain values that every other room speaks, and nothing that acts."""
