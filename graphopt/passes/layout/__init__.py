"""Layouts: Transposes pushed together and cancelled, and images turned to the layout that the caller asks for."""
